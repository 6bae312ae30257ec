"""`make fuzz`: searches for inputs that break a decoder, guided by the coverage of each target.

Every target gets the same share of the processor time. Prints a table of executions, coverage and findings, also when
it is interrupted. A finding ends its target's share; the input stays in `build/fuzz`, and this repeats it:

    python -m tests.fuzz.run --targets NAME --replay FILE
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import re
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import atheris
from tests.fuzz import sanitized

BUILD = pathlib.Path("build") / "fuzz"
INPUT_S_MAX = 20  # for one input, wall clock
MEMORY_MB_MAX = 1024  # of one process
LOOK_EVERY = 64  # executions between two looks at the clock
STATUS = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)")
INTERRUPTED: list[int] = []  # signals received
CHILDREN: list[int] = []  # the process that fuzzes
ENDED = (0, 72)  # exit codes of libFuzzer without a finding: by itself, interrupted
EXECUTED = re.compile(r"stat::number_of_executed_units: (\d+)")

if "--sanitized" in sys.argv:
    sanitized.restart()  # before anything is imported that this program would import again
os.environ["BOOKIES_KERNELS"] = "python"  # instrumented, so that what they distinguish guides the search
with atheris.instrument_imports(include=["bookies"], enable_loader_override=False):
    from tests.fuzz import corpus
    from tests.fuzz.target import Target

    if sanitized.is_active():
        sanitized.use()
        from tests.fuzz.kernels import TARGETS as KERNELS

        TARGETS = {target.name: target for target in KERNELS}
    else:
        from tests.fuzz.targets import TARGETS


@dataclass
class Result:
    """Outcome of one target. `seconds`: of processor time. `edges`, `features`, `inputs`: as libFuzzer counts them."""

    name: str
    seconds: float = 0.0
    executions: int = 0
    edges: int = 0
    features: int = 0
    inputs: int = 0
    findings: list[str] = field(default_factory=list)


def search(target: Target, seconds: float, seed: int) -> Result:
    """Fuzz one target in a process of its own, for this processor time. An interrupt reaches it as well."""
    folder = BUILD / ("sanitized" if sanitized.is_active() else "guided") / target.name
    inputs, findings, log = folder / "inputs", folder / "findings", folder / "log.txt"
    for path in (inputs, findings):
        path.mkdir(parents=True, exist_ok=True)
    for data in corpus.inputs(target):
        (inputs / hashlib.sha1(data).hexdigest()).write_bytes(data)
    known = set(findings.iterdir())
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = os.fork()
    if not child:
        _fuzz(target, seconds, findings, [f"-seed={seed}", str(inputs)], log)
    CHILDREN.append(child)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    CHILDREN.remove(child)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = log.read_text(errors="replace")
    result = Result(target.name, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    for match in STATUS.finditer(text):
        result.executions, result.edges, result.features, result.inputs = map(int, match.groups())
    for match in EXECUTED.finditer(text):
        result.executions = int(match[1])
    result.findings = [str(path) for path in findings.iterdir() if path not in known]
    if status not in ENDED and not result.findings:
        result.findings.append(f"{log}: ended with {status}")
    if result.findings:
        print(f"{target.name}: {', '.join(result.findings)}\n{text[-3000:]}", file=sys.stderr)
    return result


def _fuzz(target: Target, seconds: float, findings: pathlib.Path, arguments: Sequence[str], log: pathlib.Path) -> None:
    """Run libFuzzer in this process, which ends with it."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # libFuzzer's own handler prints how far it got
    started, count = os.times(), 0

    def run(data: bytes) -> None:
        nonlocal count
        target.run(data)
        count += 1
        if count % LOOK_EVERY == 0 and sum(os.times()[:2]) - sum(started[:2]) > seconds:
            os.kill(os.getpid(), signal.SIGINT)

    if sanitized.is_active():
        sanitized.mutate(target, seconds, BUILD / "guided" / target.name / "inputs", findings)
    options = [f"-timeout={INPUT_S_MAX}", f"-rss_limit_mb={MEMORY_MB_MAX}", f"-artifact_prefix={findings}/"]
    atheris.Setup([sys.argv[0], f"-max_len={target.size_max}", "-print_final_stats=1", *options, *arguments], run)
    atheris.Fuzz()  # after a finding libFuzzer writes the input when the process exits


def _interrupt(number: int, frame: object) -> None:
    """Let the current target print how far it got, and end the run after it."""
    INTERRUPTED.append(number)
    for child in CHILDREN:
        os.kill(child, signal.SIGINT)


def table(results: Sequence[Result]) -> str:
    """Return the results as a table for the documents."""
    rows = [("target", "executions", "edges", "features", "inputs", "processor s", "findings"), ("---", *["---:"] * 6)]
    for one in results:
        numbers = one.executions, one.edges, one.features, one.inputs, round(one.seconds), len(one.findings)
        rows.append((one.name, *(f"{number:,}" for number in numbers)))
    executions, seconds = sum(one.executions for one in results), sum(one.seconds for one in results)
    findings = sum(len(one.findings) for one in results)
    rows.append(("all", f"{executions:,}", "", "", "", f"{seconds:,.0f}", f"{findings:,}"))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5, help="of processor time, for the whole run")
    parser.add_argument("--targets", default="", help="names separated by commas; default: all")
    parser.add_argument(
        "--sanitized", action="store_true", help="the compiled kernels, with sanitizers, against Python's"
    )
    parser.add_argument(
        "--keep", action="store_true", help="add to the corpora what reaches new code, and nothing else"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the search; 0: another one each time")
    parser.add_argument("--replay", metavar="FILE", help="run the target on this file, and nothing else")
    arguments = parser.parse_args()
    names = [name for name in arguments.targets.split(",") if name] or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"unknown target {unknown[0]}; there are {', '.join(TARGETS)}")
    if arguments.replay:
        TARGETS[names[0]].run(pathlib.Path(arguments.replay).read_bytes())
        return 0
    if arguments.sanitized:
        assert sanitized.is_active()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    seconds, results = arguments.minutes * 60 / len(names), list[Result]()
    for name in names:
        print(f"{name}: {seconds:.0f} s", file=sys.stderr)
        results.append(search(TARGETS[name], seconds, arguments.seed))
        if INTERRUPTED:
            break
        if arguments.keep and not results[-1].findings:
            corpus.keep(TARGETS[name], BUILD / "guided" / name / "inputs")
    print(table(results))
    if INTERRUPTED:
        print(f"interrupted in target {len(results)} of {len(names)}, {name}")
    return 1 if INTERRUPTED or any(one.findings for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
