"""`bk help apache`: the counterpart of each of Apache's commands."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence

from bookies.admin.shared.common import print_json, print_table
from bookies.apache.commands import HTTP, NOT_YET, SHELL, Counterpart


def print_counterparts(words: Sequence[str]) -> int:
    """Print all counterparts, or those of the named commands. Return 2 for a name that Apache does not have."""
    names = [word for word in words if word != "--json"]
    tables = {"bookkeeper shell": SHELL, "HTTP": HTTP}
    known = {counterpart.theirs: counterpart for table in tables.values() for counterpart in table}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            print(f"bk help apache: Apache has no command or endpoint {name}{hint}", file=sys.stderr)
            return 2
    shown = {
        title: [counterpart for counterpart in table if not names or counterpart.theirs in names]
        for title, table in tables.items()
    }
    if "--json" in words:
        rows = [counterpart for table in shown.values() for counterpart in table]
        print_json(
            [
                {"theirs": counterpart.theirs, "ours": counterpart.ours or None, "note": counterpart.note}
                for counterpart in rows
            ]
        )
        return 0
    blocks = [(title, table) for title, table in shown.items() if table]
    for number, (title, table) in enumerate(blocks):
        if number:
            print()
        print_table([_row(counterpart) for counterpart in table], (title, "bk", ""))
    return 0


def _row(counterpart: Counterpart) -> tuple[str, str, str]:
    return counterpart.theirs, counterpart.ours or NOT_YET, counterpart.note
