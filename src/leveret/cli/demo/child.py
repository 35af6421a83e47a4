"""A process that ends with the demo: `python -m leveret.cli.demo.child MODULE ARGUMENT …`.

Runs `python -m MODULE ARGUMENT …`. Its stdin is a pipe whose other end only the demo holds. If the demo is
gone, perhaps killed, the pipe is at its end and nobody else would end this process. Then it gets a SIGTERM.
If it does not end in time, it is killed with all processes that it has started.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from typing import Final

_STDIN: Final = 0
_END_S: Final = 10.0
_READ_BYTES: Final = 4096


def _end_with_the_demo() -> None:
    while os.read(_STDIN, _READ_BYTES):
        # Nobody writes to the pipe.
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_S)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
