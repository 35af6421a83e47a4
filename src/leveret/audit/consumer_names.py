"""Names of consumers: the name of the connection rather than its address.

The broker writes labels like `10.0.0.7:45008 -> 10.0.0.1:5672 worker-1 (1) tag` into its journals: two
addresses, the name of the connection if it has one, the number of the channel and the consumer tag. Addresses
change with every reconnect, so by its label a consumer would appear several times in the report. The rule:
`name_of` and `named` return the same name for every label.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

_LABEL: Final = r"^(\S+) -> \S+(?: (.+))? \([0-9]+\) (.*)$"
_ROLE: Final = r" \((?:consuming|publishing)\)$"
"""The suffix that the toolkit adds to connection names."""
_GENERATED: Final = r"^(?:amq\.ctag-|amq\.gen-|ctag[0-9]|leveret\.|$)"
"""Consumer tags that a broker or client library generated."""
_label_pattern, _role_pattern, _generated_pattern = map(re.compile, (_LABEL, _ROLE, _GENERATED))


def name_of(label: str) -> str:
    """Return the name of the connection, else a tag that an application chose, else the client's address.

    >>> name_of("127.0.0.1:45008 -> 127.0.0.1:5672 worker-1 (consuming) (1) leveret.80b213e26b85")
    'worker-1'
    >>> name_of("127.0.0.1:45008 -> 127.0.0.1:5672 (1) holder"), name_of("query 'lake'")
    ('holder', "query 'lake'")
    >>> name_of("127.0.0.1:45008 -> 127.0.0.1:5672 (1) ctag1.3f2a")
    '127.0.0.1:45008'
    """
    match = _label_pattern.match(label)
    if match is None:
        return label
    address, connection, tag = match.groups("")
    return _role_pattern.sub("", connection) or (address if _generated_pattern.match(tag) else tag)


def address_of(label: str) -> str:
    """Return the address of the client, or an empty string if the label has none.

    >>> address_of("127.0.0.1:45008 -> 127.0.0.1:5672 worker-1 (1) tag"), address_of("query 'lake'")
    ('127.0.0.1:45008', '')
    """
    match = _label_pattern.match(label)
    return match[1] if match else ""


def named(label: Column) -> Column:
    """Return `name_of` each label of a column."""
    from pyspark.sql import functions as F  # noqa: N812

    address, connection, tag = (F.regexp_extract(label, _LABEL, group) for group in (1, 2, 3))
    name = F.regexp_replace(connection, _ROLE, "")
    by_tag = F.when(tag.rlike(_GENERATED), address).otherwise(tag)
    return F.when(address == "", label).when(name != "", name).otherwise(by_tag)
