"""Seeded sessions of AMQP on real sockets, many at once, beside a client that does nothing wrong."""

import asyncio
from random import Random

import pytest

from leveret.testing.broker import Broker
from tests.faults.amqp_fuzzing import AmqpFuzzer, whole_frames
from tests.faults.fuzzing import Bystander, Watched, attack, beside, pieces_of
from tests.processes import WAIT_S
from tests.properties.broker_input import LIMITS, check_answers

pytestmark = pytest.mark.real

SESSIONS = 40
ENDS = ["close", "abort", "half-close", "half-close"]


@pytest.mark.histories(sample=8, full=400)
def test_whatever_amqp_clients_send_the_broker_survives_and_serves_others(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    random = Random(seed)
    fuzzer = AmqpFuzzer(random)
    sessions = [(pieces_of(random, fuzzer.session()), random.choice(ENDS)) for _ in range(SESSIONS)]

    async def play(port: int) -> list[bytes]:
        bystander = Bystander()
        await bystander.connect(port, channel_max=LIMITS.channel_max, frame_max=LIMITS.frame_max)
        attacks = [attack(port, pieces, end) for pieces, end in sessions]
        answers = await beside(attacks, [bystander.round])
        await bystander.leave()
        return answers

    with Broker(limits=LIMITS) as broker:
        watched = Watched(broker, caplog)
        answers = asyncio.run(asyncio.wait_for(play(broker.port), WAIT_S))
        watched.check()
    for answer in answers:
        check_answers(whole_frames(answer))
