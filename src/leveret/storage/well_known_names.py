"""Names that the broker writes into its store and that the audit looks for.

They are names of cursors, labels of logs, and values of `who` in journal entries. The store itself gives
them no meaning.
"""

from typing import Final

OWN_CURSOR: Final = "queue"
"""Name of the cursor of a queue or stream itself. Other cursors belong to groups."""
RETURNED: Final = "returned"
"""Key in the label of a virtual host's log of returned messages; its value is the virtual host's name."""
STAGE: Final = "stage "
"""Prefix of `who` in leases of a staged batch's messages, which hide them until the batch commits."""
ABORTED: Final = "stage"
"""Value of `who` when messages of a staged batch are dropped without a commit."""
