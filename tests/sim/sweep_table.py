"""Adds sweeps to the table of docs/internals/correctness.md: `bk sim ... --json > RUNS`, then `sweep_table.py RUNS`.

Each file has the documents of runs of one profile, on the present commit. A sweep of the same profile replaces its row.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "internals" / "correctness.md"
BEGIN = "<!-- sweeps: written by `python tests/sim/sweep_table.py` -->"
END = "<!-- end of the sweeps -->"
HEAD = ["| profile | seeds | histories | steps | violations | commit |", "|---|---|---|---|---|---|"]


def row_of(text: str, commit: str) -> tuple[str, str]:
    """Return (profile, row) of the runs in `text`. Other lines are ignored: warnings of a run may be between them."""
    runs = [json.loads(line) for line in text.splitlines() if line.startswith('{"seed"')]
    names = list(dict.fromkeys(run["profile"] for run in runs))
    if len(names) != 1:
        raise SystemExit(f"expected the runs of one profile, not of {', '.join(names) or 'none'}")
    seeds = sorted({run["seed"] for run in runs})
    is_whole = len(seeds) == seeds[-1] - seeds[0] + 1
    shown = f"{seeds[0]:,} to {seeds[-1]:,}" if is_whole else f"{len(seeds):,} of {seeds[0]:,} to {seeds[-1]:,}"
    steps = sum(int(run["statistics"]["callbacks"]) for run in runs)
    violations = sum(len(run["violations"]) for run in runs)
    return names[0], f"| {names[0]} | {shown} | {len(runs):,} | {steps:,} | {violations:,} | {commit} |"


def merged(page: str, rows: dict[str, str]) -> str:
    """Return the page with these rows, by profile, in its table."""
    before, rest = page.split(BEGIN)
    table, after = rest.split(END)
    known = {line.split("|")[1].strip(): line for line in table.strip().splitlines()[len(HEAD) :]}
    lines = [row for _, row in sorted((known | rows).items())]
    return "\n".join([before + BEGIN, *HEAD, *lines, END + after])


def main(paths: list[str]) -> int:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True, cwd=PAGE.parent
    ).stdout.strip()
    rows = dict(row_of(pathlib.Path(path).read_text(), commit) for path in paths)
    PAGE.write_text(merged(PAGE.read_text(), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
