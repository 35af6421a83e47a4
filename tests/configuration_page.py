"""The tables of settings in `docs/guide/configuration.md`.

`python -m tests.configuration_page` writes them into the page.
"""

from itertools import groupby
from pathlib import Path

from leveret.server.settings import SETTINGS, Setting

PAGE = Path(__file__).parents[1] / "docs" / "guide" / "configuration.md"
BEGIN = "<!-- `make docs` writes what follows from leveret.server.settings -->\n"


def page() -> str:
    """Return the page with the present tables."""
    written_by_hand, _, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    sections = groupby(SETTINGS, lambda setting: setting.name.partition(".")[0])
    return (
        written_by_hand + BEGIN + "".join(_table(section, list(settings)) for section, settings in sections)
    )


def _table(section: str, settings: list[Setting]) -> str:
    rows = "".join(
        f"| `{setting.name.partition('.')[2]}` | {_default(setting)} | {setting.expected} "
        f"| {setting.meaning} | {'yes' if setting.is_reloaded else ''} |\n"
        for setting in settings
    )
    return (
        f"\n### `[{section}]`\n\n| key | default | value | meaning | SIGHUP |\n|---|---|---|---|---|\n{rows}"
    )


def _default(setting: Setting) -> str:
    return "" if setting.default in (None, "") else f"`{setting.default}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
