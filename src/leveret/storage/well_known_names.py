"""Words that the broker writes into its store, and that the audit knows things by.

To the store itself they mean nothing: names of cursors, labels of logs, and who and why of a journal's
entries are texts like any other.
"""

from typing import Final

OWN_CURSOR: Final = "queue"
"""The cursor that a queue or a stream has itself; others are those of groups."""
RETURNED: Final = "returned"
"""The log of what went back to publishers says so in its label, with the name of a virtual host."""
STAGE: Final = "stage "
"""How the names of those begin who only hide what they have published, until they commit: nobody gets it."""
ABORTED: Final = "stage"
"""Who drops what was hidden and never shown."""
