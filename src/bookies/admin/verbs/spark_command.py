"""`bk spark`: jobs over a whole cluster, in a local Spark session or in that of spark-submit.

See docs/reference/spark-jobs.md.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from bookies.admin.shared.command_line import CLUSTER, MACHINE, add_options
from bookies.admin.shared.common import interruptible, metadata_uri, size_text
from bookies.admin.shared.report import Report

END_S = 120.0  # for a job whose standard input has ended; then it ends without clean-up

if TYPE_CHECKING:
    from bookies.spark.jobs.shared.common import JobConfig, Option


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example:  bk spark scrub --level 3 --output runs --run-id monday --report scrub.html\n"
        "          bk spark repair --plan runs/monday/plan --dry-run\n"
        "on a cluster, with the package on every worker:\n"
        "          spark-submit --master ... .../bookies/admin/cli.py spark scrub ..."
    )
    from bookies.spark.jobs import JOBS

    names = parser.add_subparsers(dest="job", metavar="JOB", required=True)
    for name, (module_name, text) in JOBS.items():
        job_parser = names.add_parser(
            name, help=text, description=text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        for option in _options(module_name):
            if option.is_positional:
                count: dict[str, Any] = {"nargs": "+"} if option.is_many else {}
                job_parser.add_argument(
                    option.name, type=option.kind, metavar=option.metavar, help=option.help, **count
                )
                continue
            if option.kind is bool:
                name = f"--{option.name.replace('_', '-')}"
                job_parser.add_argument(name, action="store_true", help=option.help)
                continue
            job_parser.add_argument(
                f"--{option.name.replace('_', '-')}",
                type=option.kind,
                default=option.default,
                choices=option.choices,
                metavar=option.metavar or (None if option.choices else option.kind.__name__.upper()),
                help=option.help + (f" (default {option.default})" if option.default is not None else ""),
            )
        _add_shared(job_parser)
    text = "write this package as a zip, for spark-submit --py-files"
    package_parser = names.add_parser("package", help=text, description=text)
    package_parser.add_argument("file", metavar="FILE.zip", help="file to write")
    add_options(package_parser, MACHINE)
    text = "list the jobs and their options, and report whether this machine can run them"
    add_options(names.add_parser("jobs", help=text, description=text), MACHINE)


def _options(module_name: str) -> tuple[Option, ...]:
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise SystemExit(
            f"bk spark: module {error.name} is missing; install PySpark and Arrow: pip install 'bookies[spark]'"
        ) from error
    options: tuple[Option, ...] = module.OPTIONS
    return options


def _add_shared(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("options of every job")
    mode = group.add_mutually_exclusive_group()
    mode.add_argument("--plan-only", action="store_true", help="report what would be read, and the estimated time")
    mode.add_argument("--dry-run", action="store_true", help="read and check, but change nothing")
    group.add_argument(
        "--output", metavar="DIR", help="directory of results; a run with the same id skips finished parts"
    )
    group.add_argument("--run-id", default="", metavar="NAME", help="name of the run; the same name continues it")
    group.add_argument(
        "--report",
        metavar="FILE",
        action="append",
        default=[],
        help="HTML file to write, or JSON if its name ends in .json; may be repeated",
    )
    group.add_argument(
        "--rate",
        type=float,
        metavar="MB",
        help="megabytes per second to read from each bookie, at most (default: no limit)",
    )
    group.add_argument("--cores", type=int, metavar="N", help="cores of the local session (default: all)")
    group.add_argument(
        "--end-with-stdin",
        action="store_true",
        help="interrupt the job when its standard input ends, so that it does not outlive the program that started it",
    )
    add_options(group, CLUSTER)


def run(arguments: argparse.Namespace) -> Report | int:
    if arguments.job in ("package", "jobs"):
        return _package(arguments) if arguments.job == "package" else _jobs()
    from bookies.spark.base.session import session
    from bookies.spark.jobs import JOBS
    from bookies.spark.jobs.shared.failures import plain_errors
    from bookies.spark.jobs.shared.report import document, page, text

    module = importlib.import_module(JOBS[arguments.job][0])
    config = _config(arguments, module)
    if not arguments.debug:
        _quieten_py4j()
    with interruptible():
        if arguments.end_with_stdin:
            threading.Thread(target=_interrupt_after_stdin, name="standard input", daemon=True).start()
        with session(arguments.job, arguments.cores) as spark, plain_errors():
            result = module.complete(spark, config)
            report = replace(result.report, counters=config.counters)
            for name in arguments.report:
                pathlib.Path(name).write_text(document(report) if name.endswith(".json") else page(report))
            if arguments.json:
                _print_rows(result.frame)
            else:
                print(text(report))
    for name in arguments.report:
        print(f"report: {name}", file=sys.stderr)
    return 0 if report.is_good else 1


def _interrupt_after_stdin() -> None:
    """Interrupt this process when its standard input has ended. End it if that has no effect."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(END_S)
    os._exit(130)


def _jobs() -> Report:
    """Return the jobs with their options. `problem`: why this machine cannot run them, or None."""
    from bookies.spark.base import java
    from bookies.spark.jobs import JOBS

    problem = None
    if find_spec("pyspark") is None:
        problem = "PySpark is missing: pip install 'bookies[spark]'"
    elif java.find() is None:
        problem = java.MISSING
    rows = {
        name: {"help": text, "options": {option.name: _described(option) for option in _options(module_name)}}
        for name, (module_name, text) in JOBS.items()
    }
    lines = [f"{name:16} {text}" for name, (_, text) in JOBS.items()]
    if problem is None:
        return Report({"jobs": rows, "problem": None}, lines)
    return Report({"jobs": rows, "problem": problem}, lines, 1, [problem])


def _described(option: Option) -> Mapping[str, object]:
    return {
        "help": option.help,
        "type": option.kind.__name__,
        "default": option.default,
        "choices": None if option.choices is None else list(option.choices),
        "metavar": option.metavar,
        "is_positional": option.is_positional,
    }


def _quieten_py4j() -> None:
    """Silence py4j, which logs a traceback per connection on an interruption."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: not record.getMessage().startswith("KeyboardInterrupt while sending"))


def _package(arguments: argparse.Namespace) -> Report:
    from bookies.spark.base.packaging import package

    size = package(arguments.file)
    text = f"{arguments.file}: {size_text(size)}; the workers also need PyArrow, google-crc32c and msgspec"
    return Report({"file": arguments.file, "bytes": size}, [text])


def _config(arguments: argparse.Namespace, module: Any) -> JobConfig:
    from bookies.spark.jobs.shared.common import DRY_RUN, PLAN, RUN, JobConfig

    options = {option.name: getattr(arguments, option.name) for option in module.OPTIONS}
    is_needed = not hasattr(module, "needs_cluster") or module.needs_cluster(options)
    return JobConfig(
        metadata_uri(arguments) if is_needed else "",
        arguments.run_id,
        PLAN if arguments.plan_only else DRY_RUN if arguments.dry_run else RUN,
        arguments.output,
        options,
        None if arguments.rate is None else arguments.rate * 1e6,
        is_quiet=arguments.json,
    )


def _print_rows(frame: Any) -> None:
    """Print one JSON document per row."""
    for batch in frame.toArrow().to_batches():
        for row in batch.to_pylist():
            print(json.dumps(row, default=str))
