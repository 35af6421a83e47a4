"""Calls that block, beside the event loop."""

import asyncio
import os
import subprocess
import sys

import pytest

from leveret.cli.background_calls import Background
from tests.processes import WAIT_S


def test_results_and_errors_come_back_in_order():
    async def main() -> list[object]:
        background = Background()
        calls = [background.call(lambda n=n: 12 // n) for n in (1, 0, 3)]
        return await asyncio.gather(*calls, return_exceptions=True)

    first, second, third = asyncio.run(main())
    assert (first, third) == (12, 4)
    assert isinstance(second, ZeroDivisionError)


def test_the_loop_goes_on_while_a_call_blocks():
    source, sink = os.pipe()

    async def main() -> bytes:
        background = Background()
        reading = asyncio.ensure_future(background.call(lambda: os.read(source, 10)))
        await asyncio.sleep(0)
        os.write(sink, b"now")
        return await asyncio.wait_for(reading, WAIT_S)

    assert asyncio.run(main()) == b"now"
    os.close(source)
    os.close(sink)


def test_a_call_that_was_given_up_disturbs_nobody():
    source, sink = os.pipe()

    async def main() -> int:
        background = Background()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(background.call(lambda: os.read(source, 10)), 0.01)
        os.write(sink, b"late")
        return await asyncio.wait_for(background.call(lambda: 7), WAIT_S)

    assert asyncio.run(main()) == 7
    os.close(source)
    os.close(sink)


@pytest.mark.real
def test_a_process_ends_although_a_call_still_blocks():
    program = """
import asyncio, os
from leveret.cli.background_calls import Background
async def main():
    asyncio.ensure_future(Background().call(lambda: os.read(os.pipe()[0], 1)))
    await asyncio.sleep(0.01)
asyncio.run(main())
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=WAIT_S, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
