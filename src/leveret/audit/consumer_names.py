"""What a consumer is called: the name that its connection gave itself, and not its address.

The broker writes `10.0.0.7:45008 -> 10.0.0.1:5672 worker-1 (1) tag` into its journals: the addresses, the
name of the connection if it has one, the number of the channel and the consumer tag. Addresses differ after
every reconnect, so a consumer that came back would stand in the report twice. The rule: `name_of` and `named`
say the same of every label.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

_LABEL: Final = r"^(\S+) -> \S+(?: (.+))? \([0-9]+\) (.*)$"
_ROLE: Final = r" \((?:consuming|publishing)\)$"
"""What the toolkit adds to the names of an application's connections."""
_GENERATED: Final = r"^(?:amq\.ctag-|amq\.gen-|ctag[0-9]|leveret\.|$)"
"""Consumer tags that nobody has chosen."""
_label, _role, _generated = map(re.compile, (_LABEL, _ROLE, _GENERATED))


def name_of(label: str) -> str:
    """Return the name of the connection, else a tag that was chosen, else the address of the client.

    >>> name_of("127.0.0.1:45008 -> 127.0.0.1:5672 worker-1 (consuming) (1) leveret.80b213e26b85")
    'worker-1'
    >>> name_of("127.0.0.1:45008 -> 127.0.0.1:5672 (1) holder"), name_of("query 'lake'")
    ('holder', "query 'lake'")
    >>> name_of("127.0.0.1:45008 -> 127.0.0.1:5672 (1) ctag1.3f2a")
    '127.0.0.1:45008'
    """
    found = _label.match(label)
    if found is None:
        return label
    address, connection, tag = found.groups("")
    return _role.sub("", connection) or (address if _generated.match(tag) else tag)


def address_of(label: str) -> str:
    """Return the address of the client, or nothing if the label has none.

    >>> address_of("127.0.0.1:45008 -> 127.0.0.1:5672 worker-1 (1) tag"), address_of("query 'lake'")
    ('127.0.0.1:45008', '')
    """
    found = _label.match(label)
    return found[1] if found else ""


def named(label: Column) -> Column:
    """Return the same as `name_of`, for a column of labels."""
    from pyspark.sql import functions as F  # noqa: N812

    address, connection, tag = (F.regexp_extract(label, _LABEL, group) for group in (1, 2, 3))
    name = F.regexp_replace(connection, _ROLE, "")
    by_tag = F.when(tag.rlike(_GENERATED), address).otherwise(tag)
    return F.when(address == "", label).when(name != "", name).otherwise(by_tag)
