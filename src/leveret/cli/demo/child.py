"""A process that ends with the demo: `python -m leveret.cli.demo.child MODULE ARGUMENT …`.

It is `python -m MODULE ARGUMENT …`, whose stdin is a pipe that the demo alone holds the other end of. When
that is at its end the demo is gone, killed perhaps, and nobody else would end this process: it gets a
SIGTERM, and is killed with all that it has started itself if it does not end in time.
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
_SOME_BYTES: Final = 4096


def _end_with_the_demo() -> None:
    while os.read(_STDIN, _SOME_BYTES):
        pass  # nobody writes
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_S)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
