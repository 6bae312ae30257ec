"""Entry point of `python -m bookies`: the same as `bk`."""

from __future__ import annotations

import sys

from bookies.admin.cli import main

if __name__ == "__main__":
    sys.exit(main())
