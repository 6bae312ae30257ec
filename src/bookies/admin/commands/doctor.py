"""`bk doctor`: checks of this machine, its disks and the cluster. Each finding has a remedy.

Exit status 1 if a finding prevents bookies from running.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator

from msgspec import to_builtins

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import Option, verb
from bookies.admin.shared.common import find_data_directory, named_metadata, size_text, with_session
from bookies.admin.shared.file_systems import VOLATILE, VOLATILE_REMEDY, file_system_of
from bookies.admin.shared.report import Finding, Report, finding_text
from bookies.admin.verbs import tls_doctor

SYNC_COUNT = 50


def _run(arguments: argparse.Namespace) -> Report:
    if arguments.what is None and (arguments.bookie or arguments.certificate or arguments.key):
        raise UsageError("--bookie, --certificate and --key are for `bk doctor tls`")
    findings: list[Finding] = []
    for finding in tls_doctor.findings(arguments) if arguments.what == "tls" else _findings(arguments):
        findings.append(finding)
        if not arguments.json:
            print(finding_text(finding), flush=True)
    return Report(map(to_builtins, findings), status=int(any(finding.level == "bad" for finding in findings)))


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    yield _python()
    yield _kernels()
    yield from _disk(arguments.directory or find_data_directory() or ".")
    yield _open_files()
    yield _clock()
    yield _java()
    yield from _cluster(arguments)


def _python() -> Finding:
    text = ".".join(map(str, sys.version_info[:3]))
    return Finding("ok" if sys.version_info >= (3, 11) else "bad", f"Python {text}")


def _kernels() -> Finding:
    from importlib.metadata import PackageNotFoundError, version

    from bookies import kernels

    try:
        loop = f"uvloop {version('uvloop')}"
    except PackageNotFoundError:
        loop = "asyncio's event loop"
    if kernels.NATIVE:
        return Finding("ok", f"compiled kernels, {loop}")
    return Finding(
        "warn",
        f"kernels in Python, {loop}",
        "install a C compiler and reinstall: compiled kernels halve the CPU per add",
    )


def _disk(directory: str) -> Iterator[Finding]:
    if not os.path.isdir(directory) or not os.access(directory, os.W_OK):
        yield Finding("bad", f"{directory} is not a writable directory", "name another with --directory, or create it")
        return
    kind = file_system_of(directory)
    if kind in VOLATILE:
        yield Finding("warn", f"{directory} is on {kind}", VOLATILE_REMEDY)
    usage = shutil.disk_usage(directory)
    share = usage.used / usage.total
    text = f"{directory}: {size_text(usage.free)} free of {size_text(usage.total)} ({100 * share:.0f} % used)"
    if share > 0.95:
        yield Finding("bad", text, "free space: a bookie becomes read-only above 95 %")
    else:
        yield Finding("warn" if share > 0.9 else "ok", text, "free space soon" if share > 0.9 else "")
    import statistics

    path = os.path.join(directory, f".bk-doctor-{os.getpid()}")
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, 4096 * SYNC_COUNT)
        os.fsync(descriptor)
        times = []
        for index in range(SYNC_COUNT):
            begin = time.perf_counter()
            os.pwrite(descriptor, b"x" * 4096, 4096 * index)
            os.fdatasync(descriptor)
            times.append(1000 * (time.perf_counter() - begin))
    finally:
        os.close(descriptor)
        os.unlink(path)
    median, worst = statistics.median(times), max(times)
    text = f"a durable 4 KiB write takes {median:.2f} ms (worst of {SYNC_COUNT}: {worst:.1f} ms)"
    if median > 20:
        yield Finding("warn", text, "put the journal on a faster disk (NVMe or a battery-backed controller)")
    elif median < 0.02:
        yield Finding("warn", text, "too fast for a real sync: is this a RAM disk? A power failure would lose data")
    else:
        yield Finding("ok", text)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        return Finding("warn", f"{soft} open files allowed", f"ulimit -n {min(hard, 65536)} before starting bookies")
    return Finding("ok", f"{soft:,} open files allowed")


def _clock() -> Finding:
    if time.time() < 1_700_000_000:
        return Finding("bad", "the clock shows a time before 2023", "set the clock: journal files are named by time")
    return Finding("ok", f"clock: {time.strftime('%Y-%m-%d %H:%M:%S %Z')}")


def _java() -> Finding:
    from bookies.spark.base import java

    installation = java.find()
    if installation is None:
        return Finding("warn", "no Java 17 or newer (only Spark needs it)", java.REMEDY)
    return Finding("ok", f"Java {installation.version} for Spark ({installation.source})")


def _cluster(arguments: argparse.Namespace) -> Iterator[Finding]:
    uri = named_metadata(arguments)
    directory = find_data_directory()
    if not uri and directory is None:
        yield Finding("ok", "no cluster here yet; start one with `bk up`")
        return
    from bookies.admin.verbs.cluster_health import cluster_findings
    from bookies.errors import BookKeeperError

    try:
        yield from with_session(arguments, cluster_findings)
    except BookKeeperError as error:
        yield Finding("bad", f"metadata store: {error}", "start the cluster with `bk up`, or check the URI")


VERBS = (
    verb(
        "doctor",
        "check the machine, its disks and the cluster",
        "examples:  bk doctor --directory /nvme/journal\n           bk doctor tls --certificate b1.pem --key b1.key",
        _run,
        Option(
            "what", "check only TLS: the bookies' certificates, or a file of certificates", choices=("tls",), values="?"
        ),
        Option("--bookie ID", "tls: bookie to check (default: all)"),
        Option("--certificate FILE", "tls: check this PEM file instead of bookies"),
        Option("--key FILE", "tls: private key, if it is in another file"),
        Option("--directory", "directory for the journal (default: bk-data, else the current one)"),
    ),
)
