"""A real Prometheus beside a real cluster, in calm and in trouble: `make observe`.

It checks the rules, the configuration and the metrics of each process with promtool, scrapes for some minutes under
load, asks for every expression of every panel, demands that no alert fires, and then brings the cluster into states
that alerts are about. The durations of the alerts are divided by `FASTER`. Needs `prometheus` and `promtool`; the
states of disks need root, for a small file system in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import datetime
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from tests.fakes.certificates import Authority

import bookies
from bookies.admin.cluster import LocalCluster
from bookies.admin.cluster.alerts import ALERTS, expression_of
from bookies.admin.cluster.dashboards import DASHBOARDS
from bookies.admin.cluster.monitoring import Monitoring
from bookies.metadata.shared import BookieNotes
from bookies.metadata.uri import connect
from bookies.model import BookieId
from bookies.runtime import aio

FASTER = 240
PATIENCE_S = 150.0  # for an alert to fire
SETTINGS = {
    "journal_preallocate_size": 1 << 20,
    "write_cache_size": 4 << 20,
    "index_cache_size": 1 << 20,
    "disk_usage_threshold": 99,
    "disk_usage_warn_threshold": 98,
    "disk_check_interval_ms": 500,
}
RECOVERY = {"BK_LOST_BOOKIE_DELAY_S": "4", "BK_AUDIT_BOOKIES_INTERVAL_S": "4", "BK_RECOVERY_BACKOFF_MS": "1000"}
DISK_SIZE = 192 << 20
PAUSE_S = 3.0  # of the load, which would fill this disk before its state comes
MAY_BE_EMPTY = ("spark",)  # dashboards whose processes are not a part of the trial


class Trial:
    """The cluster, its processes and Prometheus."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.cluster = LocalCluster(folder / "bk-data", 4, lease_ms=2000, settings=SETTINGS)
        self.cluster.enable_http()
        self.monitoring = Monitoring(self.cluster, FASTER)
        self.disk = pathlib.Path(self.cluster.directory, "b4")
        self.has_disk = self._mount()
        self.url = ""
        self._exit = contextlib.ExitStack()
        self._others: list[str] = []
        self.recovery: subprocess.Popen[str]

    def _mount(self) -> bool:
        """Put the directories of b4 on a file system of their own, which needs root."""
        self.disk.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(self.disk)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def start(self) -> None:
        files = Authority(self.folder).issue("b3", ends=datetime.timedelta(days=3))
        self.cluster.bookies[2].settings |= {"tls_certificate": files.certificate, "tls_key": files.key}
        self.cluster.start()
        self.start_recovery()
        self.store = self._exit.enter_context(bookies.blocking.connect(self.cluster.metadata_uri))
        registry = CollectorRegistry()
        bookies.metrics.register(self.store, registry)
        server, _ = start_http_server(0, "127.0.0.1", registry)
        self._exit.callback(server.shutdown)
        self._others.append(f"127.0.0.1:{server.server_port}")
        urls, remarks = self.monitoring.start(self._others)
        print("\n".join(remarks))
        self.url = urls["prometheus"]
        print(f"Prometheus: {self.url}", flush=True)

    def start_recovery(self) -> None:
        command = [sys.executable, "-m", "bookies.admin.cli", "recovery", "run", "--http-port", "0"]
        self.recovery = subprocess.Popen(
            [*command, "--metadata", self.cluster.metadata_uri],
            env=os.environ | RECOVERY,
            stdout=subprocess.PIPE,
            stderr=(self.folder / "recovery.log").open("ab"),
            text=True,
        )
        assert self.recovery.stdout is not None
        self._others = [*self._others[1:], self.recovery.stdout.readline().split()[-1]]
        self.retarget()

    def retarget(self) -> None:
        """Let Prometheus follow processes that were started again, on other ports."""
        self.monitoring.directory.mkdir(exist_ok=True)
        self.monitoring.write_targets(self._others, [])

    def stop(self) -> None:
        self.monitoring.stop()
        self._exit.close()
        self.recovery.kill()
        self.recovery.wait()
        self.cluster.stop()
        if self.has_disk:
            subprocess.run(["umount", str(self.disk)], check=False)

    # -- what Prometheus knows -----------------------------------------------------------------------------------
    def query(self, expression: str) -> list[Any]:
        """Return the series of an expression. Raises `AssertionError` for one that Prometheus refuses."""
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                found: list[Any] = json.load(response)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        return found

    def firing(self) -> list[str]:
        return sorted({row["metric"]["alertname"] for row in self.query('ALERTS{alertstate="firing"}')})

    # -- what the cluster does -----------------------------------------------------------------------------------
    def bk(self, *words: str) -> str:
        command = [sys.executable, "-m", "bookies.admin.cli", *words]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True).stdout

    @contextlib.contextmanager
    def load(self, pause_s: float, ensemble: int = 3) -> Iterator[None]:
        """Append to ledgers and read them all the while. Failures are expected while bookies are killed.

        `pause_s`: between two ledgers, so that a long trial does not fill the small disk.
        """
        is_over = threading.Event()

        def work() -> None:
            while not is_over.is_set():
                with contextlib.suppress(bookies.BookKeeperError):
                    with self.store.create(ensemble=ensemble) as ledger:
                        for _ in range(20):
                            ledger.append_many([bytes(500)] * 50)
                            is_over.wait(0.05)
                        ledger.seal()
                    with self.store.open(ledger.ledger_id) as reader:
                        list(reader.read())
                is_over.wait(pause_s)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def written(self, *on: str, is_open: bool = False) -> Any:
        """Return a ledger of ten entries on exactly these bookies."""
        ledger = self.store.create(bookies=on, ack_quorum=1)
        ledger.append_many([b"x" * 100] * 10)
        if not is_open:
            ledger.seal()
        return ledger

    def revive(self, *names: str) -> None:
        for name in names:
            if not self.cluster._bookie(name).is_running():
                self.cluster.restart(name)
        self.retarget()


# -- states ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def read_only(trial: Trial) -> Iterator[None]:
    trial.bk("bookie", "read-only", "--bookie", "b2")
    yield
    trial.bk("bookie", "read-write", "--bookie", "b2")


@contextlib.contextmanager
def two_lost(trial: Trial) -> Iterator[None]:
    ledger = trial.written("b1", "b2", "b3", "b4", is_open=True)
    trial.written("b1", "b2", "b3", "b4")
    time.sleep(8)  # a pass of the auditor sees the open ledger
    trial.cluster.kill("b3")
    trial.cluster.kill("b4")
    yield
    trial.revive("b3", "b4")
    ledger.close()


@contextlib.contextmanager
def entries_lost(trial: Trial) -> Iterator[None]:
    trial.written("b4")
    trial.cluster.kill("b4")
    yield
    trial.revive("b4")


@contextlib.contextmanager
def recovery_off(trial: Trial) -> Iterator[None]:
    trial.bk("recovery", "disable")
    yield
    trial.bk("recovery", "enable")


@contextlib.contextmanager
def stuck_drain(trial: Trial) -> Iterator[None]:
    ledger = trial.written("b1", "b2", "b3", "b4")

    async def note(*, begins: bool) -> None:
        runtime = aio.runtime()
        driver = connect(trial.cluster.metadata_uri, runtime)
        await driver.open()
        notes = BookieNotes(driver, runtime.clock.wall_ms)
        await (notes.begin_draining(BookieId("b1"), "trial") if begins else notes.end_draining(BookieId("b1")))
        await driver.close()

    asyncio.run(note(begins=True))
    yield
    asyncio.run(note(begins=False))
    trial.store.delete(ledger.ledger_id)


@contextlib.contextmanager
def no_auditor(trial: Trial) -> Iterator[None]:
    trial.recovery.kill()
    trial.recovery.wait()
    yield
    trial.start_recovery()


@contextlib.contextmanager
def paused(trial: Trial) -> Iterator[None]:
    """Stop a bookie again and again, too briefly for Prometheus to miss all scrapes of a window.

    It has just received a batch each time: adds that arrive while it stands still are not late, since it has not read
    them.
    """
    is_over = threading.Event()
    ledger = trial.written("b2", is_open=True)

    def pause() -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            while not is_over.is_set():
                batch = pool.submit(ledger.append_many, [bytes(1000)] * 2000)
                is_over.wait(0.005)
                trial.cluster.kill("b2", signal.SIGSTOP)
                is_over.wait(1.8)
                trial.cluster.kill("b2", signal.SIGCONT)
                batch.result()
                is_over.wait(1.6)

    thread = threading.Thread(target=pause)
    thread.start()
    yield
    is_over.set()
    thread.join()
    ledger.close()


@contextlib.contextmanager
def damage(trial: Trial) -> Iterator[None]:
    ledger = trial.written("b1")
    trial.cluster.kill("b1", signal.SIGTERM)
    trial.cluster.bookies[0].wait(10)
    trial.revive("b1")  # a restart begins a new entry log, and the scrub reads the others
    (log, *_) = sorted(
        pathlib.Path(trial.cluster.bookies[0].directory).rglob("*.log"), key=lambda path: -path.stat().st_size
    )
    data = log.read_bytes()
    at = data.rindex(b"x" * 100)
    log.write_bytes(data[:at] + b"y" + data[at + 1 :])
    trial.bk("bookie", "scrub", "--now", "--bookie", "b1")
    yield
    log.write_bytes(data)
    trial.store.delete(ledger.ledger_id)


@contextlib.contextmanager
def full_disk(trial: Trial) -> Iterator[None]:
    filler = trial.disk / "filler"
    with filler.open("wb") as file:
        while os.statvfs(trial.disk).f_bavail > 0.06 * os.statvfs(trial.disk).f_blocks:
            file.write(bytes(1 << 20))
            file.flush()
            time.sleep(0.1)
    yield
    filler.unlink()


State = Callable[[Trial], contextlib.AbstractContextManager[None]]
STATES: dict[str, tuple[State, tuple[str, ...]]] = {
    "read-only bookie": (read_only, ("BookieReadOnly",)),
    "two lost bookies": (two_lost, ("BookieLost", "BookiesLost", "NoRoomForEnsemble", "UnderReplicated")),
    "lost entries": (entries_lost, ("LedgerWithoutReplica",)),
    "recovery disabled": (recovery_off, ("RecoveryOff", "AuditOverdue")),
    "drain without a target": (stuck_drain, ("DrainStuck",)),
    "no auditor": (no_auditor, ("NoAuditor",)),
    "paused bookie": (paused, ("LoopLag", "AddsSlow")),
    "damaged entry": (damage, ("ScrubDamage",)),
    "full disk": (full_disk, ("DiskNearLimit", "DiskAlmostFull")),
}
NEED_DISK = ("full disk",)
ALWAYS = ("CertificateEnds",)  # the certificate of b3 ends soon
MAY_FIRE = ("DiskFillsUp",)  # it foretells four hours from the seconds of a trial


def run(trial: Trial, minutes: float, names: list[str]) -> list[str]:
    """Return what was not as it should be."""
    problems = check_texts(trial)
    with trial.load(pause_s=minutes):
        time.sleep(60 * minutes)
        problems += check_panels(trial)
        if unexpected := [name for name in trial.firing() if name not in (*ALWAYS, *MAY_FIRE)]:
            problems.append(f"calm: {', '.join(unexpected)} fired")
        print(f"calm: {', '.join(trial.firing()) or 'no alert'}", flush=True)
    with trial.load(pause_s=PAUSE_S):
        for name in names:
            state, expected = STATES[name]
            if name in NEED_DISK and not trial.has_disk:
                print(f"{name}: not tried, because it needs root")
                continue
            began, waiting = time.monotonic(), set(expected)
            with state(trial):
                while waiting and time.monotonic() - began < PATIENCE_S:
                    time.sleep(1)
                    waiting -= set(trial.firing())
            shown = ", ".join(expected) if not waiting else f"{', '.join(sorted(waiting))} did not fire"
            print(f"{name}: {shown} ({time.monotonic() - began:.0f} s)", flush=True)
            problems += [f"{name}: {alert} did not fire" for alert in sorted(waiting)]
            time.sleep(5)
    tried = {alert for name in names for alert in STATES[name][1]} | set(ALWAYS)
    print("only with made-up series (tests/observe/states.py): "
          + ", ".join(alert.name for alert in ALERTS if alert.name not in tried))  # fmt: skip
    return problems


def check_texts(trial: Trial) -> list[str]:
    """Let promtool read the configuration, the rules, and the metrics of every process."""
    problems = []
    promtool = shutil.which("promtool") or "promtool"
    commands = [("check", "config", str(trial.monitoring.directory / "prometheus.yml"))]
    commands.append(("check", "rules", str(trial.monitoring.directory / "alerts.yml")))
    for command in commands:
        result = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        problems += [f"promtool {' '.join(command)}: {result.stderr}"] if result.returncode else []
    for row in json.loads((trial.monitoring.directory / "targets.json").read_text()):
        with urllib.request.urlopen(f"http://{row['targets'][0]}/metrics", timeout=30) as response:
            text = response.read()
        result = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
        lint = [line for line in (result.stderr + result.stdout).decode().splitlines() if line]
        ours = [line for line in lint if line.startswith("bookies_")]
        remarks = f"{len(ours)} remarks about our names, {len(lint) - len(ours)} about Apache's"
        print(f"promtool check metrics, {row['labels']['instance']}: {len(text.splitlines())} lines, {remarks}")
        problems += [f"{row['labels']['instance']}: {line}" for line in ours]
        if result.returncode not in (0, 3):  # 3: remarks about names
            problems.append(f"promtool check metrics: {lint}")
    return problems


def check_panels(trial: Trial) -> list[str]:
    """Ask for every expression of every panel. Print those that have no data, and return those that should have."""
    problems, empty, count = [], [], 0
    for board, panels in DASHBOARDS.items():
        for panel in panels:
            for legend, text in panel.lines.items():
                count += 1
                if not trial.query(expression_of(text, [legend], 'job=~".+"')) and board not in MAY_BE_EMPTY:
                    empty.append(f"{board}: {panel.title}: {legend}")
    down = [row["metric"]["instance"] for row in trial.query("up == 0")]
    problems += [f"{instance} is not scraped" for instance in down]
    failed = trial.query("bookies_metrics_failed_total > 0")
    problems += [f"{row['metric']['instance']}: metrics that could not be read" for row in failed]
    print(f"{count} expressions of panels; without data now:\n  " + "\n  ".join(empty), flush=True)
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"states: {', '.join(STATES)} (default: all)")
    parser.add_argument("--minutes", type=float, default=2.0, help="of calm at the beginning")
    arguments = parser.parse_args()
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        print("make observe needs prometheus and promtool (Debian: apt-get install prometheus)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(pathlib.Path(folder))
        try:
            trial.start()
            problems = run(trial, arguments.minutes, arguments.names or list(STATES))
        finally:
            trial.stop()
    print("\n".join(problems) or "as it should be")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
