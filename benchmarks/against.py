"""This checkout and an earlier revision of it, side by side on one machine: did it become slower?

    python benchmarks/against.py REVISION [--runs 3] [--seconds 6] [--case TEXT] [--json FILE]

Both are built and installed the same way, into directories of their own; each has a cluster of three bookies, one of
them works at a time, and their runs alternate. The table shows medians and the medians of the ratios of pairs; above 1
means that this checkout is better, whatever the figure.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
# (name, words of `bk bench`, the figures to compare)
RATES = ("entries_per_s", "client_cpu_us_per_entry", "server_cpu_us_per_entry")
CASES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("add, 100 B, 1,000 in flight", ("append", "--size", "100", "--window", "1000"), RATES),
    ("add, 1 KiB, 1,000 in flight", ("append", "--size", "1024", "--window", "1000"), RATES),
    ("add, 16 KiB, 1,000 in flight", ("append", "--size", "16384", "--window", "1000"), RATES),
    ("add, 1 KiB, one in flight", ("append", "--size", "1024", "--window", "1"), ("p50_us", "p99_us")),
    ("sequential read, 1 KiB", ("read", "--size", "1024"), RATES),
)


class Version:
    """An installed revision and its cluster."""

    def __init__(self, name: str, source: pathlib.Path, directory: pathlib.Path) -> None:
        self.name = name
        self._directory = directory / name
        self._cluster = str(self._directory / "cluster")
        packages = self._directory / "packages"
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", str(packages), str(source)], check=True)
        self._environment = {**os.environ, "PYTHONPATH": str(packages)}
        if not list((packages / "bookies" / "kernels").glob("_native*.so")):
            print(f"{name}: the compiled kernels could not be built; the Python ones are measured", file=sys.stderr)

    def bk(self, *words: str) -> str:
        command = [sys.executable, "-m", "bookies.admin.cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self._environment, cwd="/")
        if done.returncode:
            raise SystemExit(f"{self.name}: bk {' '.join(words)}: {done.stderr[-800:]}")
        return done.stdout

    def start(self) -> None:
        self.bk("up", "--directory", self._cluster)

    def stop(self) -> None:
        self.bk("down", "--directory", self._cluster)

    def measure(self, words: tuple[str, ...], arguments: argparse.Namespace) -> dict[str, Any]:
        times = ["--seconds", str(arguments.seconds), "--warmup", str(arguments.warmup)]
        found: dict[str, Any] = json.loads(self.bk("bench", *words, "--state", self._cluster, "--json", *times))
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="of this repository, for example v0.3 or HEAD~20")
    parser.add_argument("--runs", type=int, default=3, help="pairs of each case (default 3)")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--warmup", type=float, default=2)
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--json", metavar="FILE", help="every run, one JSON document")
    parser.add_argument("--directory", default=None, help="for the data of both (default: temporary)")
    arguments = parser.parse_args()
    cases = [case for case in CASES if arguments.case in case[0]]
    if not cases:
        parser.error(f"no case contains {arguments.case!r}; there are {', '.join(case[0] for case in CASES)}")
    with tempfile.TemporaryDirectory(prefix="bk-against-", dir=arguments.directory) as name:
        directory = pathlib.Path(name)
        before, now = (Version(each, _tree(rev, directory / f"{each}-source"), directory) for each, rev in
                       (("before", arguments.revision), ("now", None)))  # fmt: skip
        runs = measure(before, now, cases, arguments)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(runs, indent=1))
    print_table(runs, cases)
    return 0


def _tree(revision: str | None, directory: pathlib.Path) -> pathlib.Path:
    """The files of a revision; None: of this checkout as it is, without what building left in it."""
    directory.mkdir()
    if revision is None:
        names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        pack = subprocess.Popen(["tar", "-c", "-T", "-"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert pack.stdin is not None
        pack.stdin.write("\n".join(each for each in names.splitlines() if (ROOT / each).exists()).encode())
        pack.stdin.close()
    else:
        pack = subprocess.Popen(["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(directory)], stdin=pack.stdout, check=True)
    if pack.wait():
        raise SystemExit(f"git knows no revision {revision}")
    return directory


def measure(
    before: Version, now: Version, cases: list[tuple[str, tuple[str, ...], tuple[str, ...]]], arguments: Any
) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    started: list[Version] = []
    try:
        for each in (before, now):
            started.append(each)
            each.start()
        for number in range(arguments.runs):
            for case, words, _ in cases:
                for each in (before, now) if number % 2 == 0 else (now, before):
                    runs.append({"case": case, "version": each.name, "run": number, **each.measure(words, arguments)})
                    print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    finally:
        for each in started:
            each.stop()
    return runs


def print_table(runs: list[dict[str, Any]], cases: list[tuple[str, tuple[str, ...], tuple[str, ...]]]) -> None:
    print("| case | figure | before | now | ratio |\n|---|---|---:|---:|---:|")
    for case, _, figures in cases:
        for figure in figures:
            pairs = [
                tuple(next(run[figure] for run in runs if (run["case"], run["version"], run["run"]) == (case, each, n))
                      for each in ("before", "now"))
                for n in sorted({run["run"] for run in runs})
            ]  # fmt: skip
            ratios = [now / old if figure == "entries_per_s" else old / now for old, now in pairs if old and now]
            medians = [statistics.median(each) for each in zip(*pairs, strict=True)]
            print(f"| {case} | {figure} | {medians[0]:,.1f} | {medians[1]:,.1f} | {statistics.median(ratios):.2f} |")


if __name__ == "__main__":
    sys.exit(main())
