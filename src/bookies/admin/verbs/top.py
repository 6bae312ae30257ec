"""`bk top`: the cluster live in a terminal. Rates and latencies are from the metrics of bookies with an HTTP server."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bookies.admin.remote.remote_client import read_token
from bookies.admin.shared import UsageError
from bookies.admin.shared.common import active_context, print_json, size_text, table_lines, time_text, visible
from bookies.admin.shared.notes_text import announced_text

if TYPE_CHECKING:
    from bookies.admin.shared import Session
    from bookies.model import BookieId

FETCH_S = 5.0
SIZE_MAX = 4 << 20  # bytes of the metrics of one bookie
ONCE_S = 1.0  # between the two samples of `--once`
BAR = 10  # characters
COUNTERS = {
    "adds": "bookies_entries_added_total",
    "written": "bookie_WRITE_BYTES",
    "read": "bookie_READ_BYTES",
}
GAUGES = {"connections": "bookies_connections"}
LATENCY = 'bookies_add_request_seconds_bucket{success="true",le="'
ENTER, LEAVE, HOME, CLEAR_LINE, CLEAR_REST = (
    "\x1b[?1049h\x1b[?25l",
    "\x1b[?25h\x1b[?1049l",
    "\x1b[H",
    "\x1b[K",
    "\x1b[J",
)


class Sample(NamedTuple):
    """Metrics of one bookie at one moment. `adds_within`: adds answered within each bound, seconds, ascending."""

    at_s: float
    values: Mapping[str, float]
    adds_within: Sequence[tuple[float, float]]


def parse_sample(at_s: float, text: str) -> Sample:
    """Return the values that are shown, of an exposition in Prometheus's format."""
    values: dict[str, float] = {}
    within = []
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(LATENCY):
            within.append((float(name[len(LATENCY) :].partition('"')[0]), float(value)))
        elif name in COUNTERS.values() or name in GAUGES.values():
            values[name] = float(value)
    return Sample(at_s, values, sorted(within))


def load_of(before: Sample | None, now: Sample | None) -> dict[str, float]:
    """Return rates per second, gauges and the 99th percentile of adds (seconds) between two samples; without what is
    not known."""
    if now is None:
        return {}
    load = {word: now.values[name] for word, name in GAUGES.items() if name in now.values}
    if before is None or now.at_s <= before.at_s:
        return load
    for word, name in COUNTERS.items():
        if name in now.values and now.values[name] >= before.values.get(name, 0.0):  # otherwise it was restarted
            load[word] = (now.values[name] - before.values.get(name, 0.0)) / (now.at_s - before.at_s)
    earlier = dict(before.adds_within)
    within = [(bound, count - earlier.get(bound, 0.0)) for bound, count in now.adds_within]
    if within and within[-1][1] > 0:
        load["p99_s"] = next(bound for bound, count in within if count >= 0.99 * within[-1][1])
    return load


class Top:
    """Samples of a cluster, one after the other. `token`, `authority`: for the bookies' HTTP servers."""

    def __init__(self, session: Session, token: str, authority: str) -> None:
        self._session = session
        self._token = token
        self._authority = authority
        self._samples: dict[str, Sample] = {}

    async def facts(self) -> dict[str, Any]:
        """Return the state of the cluster now, with rates since the last call."""
        from bookies.admin.shared.notes_text import announced_facts, read_notes

        client, driver = self._session.client, self._session.driver
        notes = (await read_notes(driver)).by_bookie
        statuses = await client.bookies()
        rows = await asyncio.gather(*(self._row(status.id, status.mode) for status in statuses))
        for row in rows:
            row |= announced_facts(notes.get(row["bookie"]))
        marked = sum([len(ids) async for ids in driver.recovery.marked_ids()])
        return {
            "metadata": driver.uri,
            "at_ms": self._session.runtime.clock.wall_ms(),
            "under_replicated": marked,
            "recovery_enabled": await driver.recovery.is_enabled(),
            "bookies": rows,
        }

    async def _row(self, bookie: BookieId, mode: str) -> dict[str, Any]:
        from bookies.errors import BookieError, BookKeeperError

        row: dict[str, Any] = {"bookie": bookie, "mode": mode}
        if mode == "down":
            self._samples.pop(bookie, None)
            return row
        try:
            row["disk_total"], row["disk_free"] = await self._session.client.bookie_space(bookie)
        except BookieError as error:
            row["problem"] = str(error)
        try:
            sample = await self._sample(bookie)
        except (OSError, BookKeeperError) as error:
            row["problem"] = f"metrics: {error}"
            return row
        if sample is not None:
            row |= load_of(self._samples.get(bookie), sample)
            self._samples[bookie] = sample
        return row

    async def _sample(self, bookie: BookieId) -> Sample | None:
        info = await self._session.driver.bookie_info(bookie)
        for point in info.endpoints if info is not None else ():
            if point.id == "httpserver":
                text = await asyncio.to_thread(self._fetch, point.protocol, point.host, point.port)
                return parse_sample(time.monotonic(), text)
        return None

    def _fetch(self, scheme: str, host: str, port: int) -> str:
        """Return the metrics of a bookie. Raises OSError."""
        import http.client
        import ssl

        connection: http.client.HTTPConnection
        if scheme == "https":
            context = ssl.create_default_context(cafile=self._authority or None)
            connection = http.client.HTTPSConnection(host, port, timeout=FETCH_S, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=FETCH_S)
        # A token crosses no network in plain text.
        is_safe = scheme == "https" or host in ("localhost", "::1") or host.startswith("127.")
        headers = {"Authorization": f"Bearer {self._token}"} if self._token and is_safe else {}
        try:
            connection.request("GET", "/metrics", headers=headers)
            response = connection.getresponse()
            body = response.read(SIZE_MAX)
        except http.client.HTTPException as error:
            raise OSError(f"{error or type(error).__name__}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise OSError(f"status {response.status}" + (" (give a token: --token-file)" * (response.status == 401)))
        return body.decode("utf-8", "replace")


def frame(facts: Mapping[str, Any], head: str) -> Iterator[str]:
    """Yield the lines of one frame."""
    rows = facts["bookies"]
    modes: dict[str, int] = {}
    for row in rows:
        modes[row["mode"]] = modes.get(row["mode"], 0) + 1
    counts = ", ".join(f"{count} {mode}" for mode, count in modes.items()) or "none"
    yield f"{head}  {time_text(facts['at_ms'])}"
    repairs = "" if facts["recovery_enabled"] else "; auto-recovery is disabled"
    yield f"bookies: {counts}; ledgers that lack replicas: {facts['under_replicated']:,}{repairs}"
    yield ""
    headers = ("bookie", "mode", "disk", "adds/s", "written/s", "read/s", "p99 of adds", "connections", "announced")
    yield from table_lines([_cells(row) for row in rows], headers, right=(3, 4, 5, 6, 7))
    problems = [visible(f"{row['bookie']}: {row['problem']}") for row in rows if "problem" in row]
    if any(row["mode"] != "down" and "connections" not in row for row in rows) and not problems:
        problems.append("bookies without rates have no HTTP server: start them with http_port")
    if problems:
        yield ""
        yield from problems


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    disk = "-"
    if row.get("disk_total"):
        share = 1 - row["disk_free"] / row["disk_total"]
        filled = min(BAR, round(share * BAR))
        disk = f"[{'#' * filled}{'.' * (BAR - filled)}] {share:.0%}"
    return (
        row["bookie"],
        row["mode"],
        disk,
        f"{row['adds']:,.0f}" if "adds" in row else "-",
        size_text(round(row["written"])) if "written" in row else "-",
        size_text(round(row["read"])) if "read" in row else "-",
        f"{1000 * row['p99_s']:,.1f} ms" if "p99_s" in row else "-",
        f"{row['connections']:.0f}" if "connections" in row else "-",
        announced_text(row),
    )


async def watch(session: Session, arguments: argparse.Namespace) -> int:
    """Print frames until interrupted, or one with `--once`, with `--json`, or if stdout is no terminal."""
    if arguments.interval <= 0:
        raise UsageError(f"--interval {arguments.interval:g}: must be a number of seconds above 0")
    token = read_token(arguments.token_file or os.environ.get("BK_TOKEN_FILE", ""))
    top = Top(session, token, arguments.authority or os.environ.get("BK_SERVER_AUTHORITY", ""))
    context = active_context(arguments)
    head = f"{context[0]} ({session.driver.uri})" if context is not None else session.driver.uri
    await top.facts()
    if arguments.once or arguments.json or not sys.stdout.isatty():
        await asyncio.sleep(min(ONCE_S, arguments.interval))
        facts = await top.facts()
        if arguments.json:
            print_json(facts)
        else:
            print("\n".join(frame(facts, head)))
        return 0
    sys.stdout.write(ENTER)
    try:
        while True:
            _show(frame(await top.facts(), head))
            await asyncio.sleep(arguments.interval)
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()


def _show(lines: Iterator[str]) -> None:
    """Replace the frame on the terminal, as far as it fits."""
    width, height = shutil.get_terminal_size()
    fitting = [line[:width] for line in lines][: height - 1]
    sys.stdout.write(HOME + "".join(f"{line}{CLEAR_LINE}\n" for line in fitting) + CLEAR_REST)
    sys.stdout.flush()
