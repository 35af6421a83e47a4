"""Login responses of connection.start-ok: name and password, by the mechanism PLAIN or AMQPLAIN.

The mechanism EXTERNAL has neither: the client's certificate names the user.
"""

from __future__ import annotations

from typing import Final

from leveret.amqp.errors import AmqpError
from leveret.amqp.names import to_bytes, to_text
from leveret.amqp.tables import decode_table_body

EXTERNAL: Final = "EXTERNAL"


class BadResponse(Exception):
    """The mechanism is unknown, or the response does not have its form."""


def read_response(mechanism: str, response: bytes) -> tuple[str, bytes]:
    """Return the name and the password.

    >>> read_response("PLAIN", b"\\0guest\\0secret")
    ('guest', b'secret')
    """
    if mechanism == "PLAIN":
        parts = response.split(b"\0")
        if len(parts) != 3:
            raise BadResponse
        return to_text(parts[1]), parts[2]
    if mechanism == "AMQPLAIN":
        try:
            table = decode_table_body(response, 0, len(response))
        except AmqpError:
            raise BadResponse from None
        name, password = table.get("LOGIN"), table.get("PASSWORD")
        if isinstance(name, str) and isinstance(password, str):
            return name, to_bytes(password)
    raise BadResponse
