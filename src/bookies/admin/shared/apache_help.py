"""`bk help apache`: the counterpart of each of Apache's commands."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Sequence

from bookies.admin.shared.report import Report, Table, print_report
from bookies.apache.commands import HTTP, NOT_DUE, SHELL, Counterpart


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
    facts = [
        {"theirs": counterpart.theirs, "ours": counterpart.ours or None, "note": counterpart.note}
        for table in shown.values()
        for counterpart in table
    ]
    return print_report(Report(facts, _blocks(shown)), as_json="--json" in words)


def _blocks(shown: dict[str, list[Counterpart]]) -> Iterator[str | Table]:
    """Yield a table for each title that has counterparts, and an empty line between two."""
    is_first = True
    for title, table in shown.items():
        if table:
            if not is_first:
                yield ""
            is_first = False
            yield Table((title, "bk", ""), [(row.theirs, row.ours or NOT_DUE, row.note) for row in table])
