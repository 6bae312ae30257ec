"""`bk help apache`: our command beside each of Apache's."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence

from bookies.admin.shared.common import print_json, print_table
from bookies.apache.commands import HTTP, NOT_YET, SHELL, Counterpart


def print_counterparts(words: Sequence[str]) -> int:
    """All of them, or those that the words name. Exit status 2 for a word that is none of Apache's."""
    names = [word for word in words if word != "--json"]
    tables = {"bookkeeper shell": SHELL, "HTTP": HTTP}
    known = {each.theirs: each for table in tables.values() for each in table}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            print(f"bk help apache: {name} is no command or endpoint of Apache's{hint}", file=sys.stderr)
            return 2
    shown = {title: [each for each in table if not names or each.theirs in names] for title, table in tables.items()}
    if "--json" in words:
        rows = [each for table in shown.values() for each in table]
        print_json([{"theirs": each.theirs, "ours": each.ours or None, "note": each.note} for each in rows])
        return 0
    blocks = [(title, table) for title, table in shown.items() if table]
    for number, (title, table) in enumerate(blocks):
        if number:
            print()
        print_table([_row(each) for each in table], (title, "bk", ""))
    return 0


def _row(each: Counterpart) -> tuple[str, str, str]:
    return each.theirs, each.ours or NOT_YET, each.note
