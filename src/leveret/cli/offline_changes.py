"""Lines in the admin log for commands that change the data directory of a stopped broker.

The user is the one of the operating system. The rule: the change is done already, so a line that can't be
written is a warning on stderr, and no failure.
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from pathlib import Path

from leveret.cli.screen import Screen
from leveret.server import admin_log


def note_offline_change(data_dir: Path, command: str, names: Mapping[str, str], screen: Screen) -> None:
    """Append a line: `note_offline_change(path, "users recover", {"name": "ann"}, screen)`."""
    report = admin_log.local_report("COMMAND", f"leveret {command}", names, user=_system_user())
    file = data_dir / admin_log.FILE
    try:
        admin_log.append(str(file), report)
    except OSError as error:
        screen.say(f"{file} can't be written, so this change is missing in it: {error.strerror}")


def _system_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
