"""A coverage-guided fuzzer over the sans-IO core: bytes that reach new branches are kept and changed further.

    python -m bench.fuzz_amqp --seconds 60        # needs `pip install atheris`

The first byte of an input chooses how far a session has come before the rest is fed to it, and the second
where the rest is cut in two. The oracle is that of `tests/properties/test_broker_input.py`: nothing is
raised, the answer can be read, nothing is left behind, the next client is served. Inputs are kept in
`--corpus` between runs, if one is given; a finding ends it with an error and is written to the current
directory as `crash-…`.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import NoReturn

try:
    import atheris
except ImportError:
    sys.exit("the fuzzer needs atheris: pip install atheris")

with atheris.instrument_imports(include=["leveret.amqp", "leveret.broker"]):
    from pamqp import commands

    from leveret.amqp.frames import FRAME, OVERHEAD_BYTES, PROTOCOL_HEADER, frame
    from tests.amqp.session import (
        Core,
        channel_open,
        handshake,
        opened,
        published,
        sent,
        settlement,
        start_ok,
        tune_ok,
    )
    from tests.properties.broker_input import LIMITS, READY, check_answers, check_that_nothing_is_left

TUNED = tune_ok(channel_max=5, frame_max=8192)
DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "p", "x-max-length": 3}
BUSY = (
    READY
    + sent(1, commands.Queue.Declare, queue="q", arguments=DEAD)
    + sent(1, commands.Queue.Declare, queue="p", exclusive=True)
    + sent(1, commands.Confirm.Select)
    + sent(2, commands.Tx.Select)
    + published(1, b"body", delivery_mode=2) * 3
    + sent(1, commands.Basic.Consume, queue="q", consumer_tag="c")
    + sent(1, commands.Basic.Consume, queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True)
)
PREFIXES = [
    b"",
    PROTOCOL_HEADER,
    PROTOCOL_HEADER + start_ok(),
    PROTOCOL_HEADER + start_ok() + TUNED,
    READY,
    READY,
    BUSY,
    BUSY,
]


def one_input(data: bytes) -> None:
    core = Core(limits=LIMITS)
    session = core.session()
    prefix = PREFIXES[data[0] % len(PREFIXES)] if data else b""
    place = data[1] if len(data) > 1 else 0
    answer = session.feed(prefix) + session.feed(data[2 : 2 + place]) + session.feed(data[2 + place :])
    core.pass_time(1)
    check_answers(answer + session.taken())
    check_that_nothing_is_left(core, session)


def mutated(data: bytes, max_size: int, seed: int) -> bytes:
    """Most changes keep the frames whole, or the scanner would stop nearly all of them."""
    random = Random(seed)
    frames = split(data[2:])
    if not frames or random.random() < 0.2:
        return atheris.Mutate(data, max_size)
    at = random.randrange(len(frames))
    match random.randrange(5):
        case 0:
            frames.insert(at, random.choice(frames))
        case 1:
            frames.insert(at, random.choice(SEED_FRAMES))
        case 2 if len(frames) > 1:
            del frames[at]
        case 3:
            kind, channel, payload = frames[at]
            frames[at] = (random.choice((1, 2, 3, kind)), random.choice((0, 1, 2, channel)), payload)
        case _:
            kind, channel, payload = frames[at]
            frames[at] = (kind, channel, atheris.Mutate(payload, len(payload) + 16))
    return (data[:2] + b"".join(frame(*each) for each in frames))[:max_size]


def split(data: bytes) -> list[tuple[int, int, bytes]]:
    """The whole frames at the beginning."""
    found, position = [], 0
    while len(data) - position >= OVERHEAD_BYTES:
        kind, channel, size = FRAME.unpack_from(data, position)
        stop = position + OVERHEAD_BYTES - 1 + size
        if stop >= len(data):
            break
        found.append((kind, channel, data[position + OVERHEAD_BYTES - 1 : stop]))
        position = stop + 1
    return found


def seeds() -> list[bytes]:
    """One valid input for every method, and some sessions, to begin with."""
    found = [bytes((4, 0)) + sent(1, kind) for kind in commands.INDEX_MAPPING.values()]
    found += [bytes((0, 9)) + handshake(channel_max=5, frame_max=8192) + channel_open(1)]
    found += [bytes((3, 0)) + opened(), bytes((2, 0)) + TUNED, bytes((1, 0)) + start_ok()]
    found += [
        bytes((6, 40)) + settlement(1, kind, tag, bits)
        for kind in (80, 90, 120)
        for tag in (0, 1, 3)
        for bits in (0, 1, 2)
    ]
    everything = {"headers": {"CC": ["p"], "x-death": [{"queue": "q", "count": 1}]}, "priority": 4}
    everything |= {"expiration": "10", "user_id": "guest", "reply_to": "amq.rabbitmq.reply-to"}
    found += [bytes((6, 60)) + published(channel, b"body", **everything) for channel in (1, 2)]
    arguments = {"x-message-ttl": 0, "x-max-priority": 5, "x-overflow": "reject-publish", "x-expires": 5}
    found.append(bytes((4, 0)) + sent(1, commands.Queue.Declare, queue="z", arguments=arguments))
    return found


SEED_FRAMES = [each for seed in seeds() for each in split(seed[2:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path)
    chosen = parser.parse_args()
    if chosen.corpus is not None:
        fuzz(chosen.corpus, seconds=chosen.seconds, seed=chosen.seed)
    with tempfile.TemporaryDirectory() as scratch:  # in a process of its own: `fuzz` does not return
        again = [sys.executable, "-m", "bench.fuzz_amqp", f"--corpus={scratch}"]
        again += [f"--seconds={chosen.seconds}", f"--seed={chosen.seed}"]
        sys.exit(subprocess.run(again, check=False).returncode)


def fuzz(corpus: Path, *, seconds: int, seed: int) -> NoReturn:
    """Ends the process: with 0 when the time is over, otherwise with a finding."""
    corpus.mkdir(parents=True, exist_ok=True)
    for number, first in enumerate(seeds()):
        (corpus / f"seed-{number:03}").write_bytes(first)
    options = [f"-max_total_time={seconds}", f"-seed={seed}", "-max_len=1024", "-timeout=20"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one_input, custom_mutator=mutated)
    atheris.Fuzz()
    raise AssertionError("the fuzzer came back")


if __name__ == "__main__":
    main()
