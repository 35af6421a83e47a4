"""`python -m tests.compatibility` writes `docs/guide/compatibility.md`; it fails when a claim has no test."""

import sys

from tests.compatibility.page import PATH, missing, text


def main() -> int:
    if without := missing():
        print("\n".join(without), file=sys.stderr)
        print(f"{len(without)} claims without a test: the page is not written.", file=sys.stderr)
        return 1
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
