"""`bk cluster health`: whether all is well, and if not, why and what to do. `bk doctor` and the console use it too.

It asks the metadata store, and each of at most `ASKED_MAX` registered bookies for its disks and its own conditions. It
reads no ledger, so its cost does not depend on their number.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct, to_builtins

from bookies.admin.shared.common import Session, size_text, time_text
from bookies.admin.shared.notes_text import state_text
from bookies.admin.shared.report import Finding, Report

if TYPE_CHECKING:
    from bookies.client.transport import BookieStatus
    from bookies.metadata.shared.bookie_notes import Note
    from bookies.model import BookieId
    from bookies.replication.operator.status import RecoveryStatus

ASKED_MAX = 100  # bookies that are asked
ANSWER_S = 2.0  # time for the answer of one
HEALTH_S = 10.0  # time for all
ANSWER_SIZE_MAX = 64 << 10  # bytes
ALMOST_FULL = 0.9  # share of a bookie's disks
NAMED_MAX = 20  # findings of one type, after which they are counted
WRITABLE_MIN = 3  # bookies that the default of three replicas needs
STATE_PATH = "/api/v1/bookie/state"
LEVELS = ("bad", "warn", "ok")
BRIEF = 100  # characters of a finding in the sentence
WRITES = "writes"  # subject of the finding about writable bookies
RECOVERY = "recovery"  # subject of findings about auto-recovery


class _Answer(Struct, frozen=True):
    """Answer of a bookie. `space`: (total, free) bytes; None: no answer, because of `error`.

    `reasons`: of its own conditions that do not hold; None: unknown. `steps`: what to do about them.
    """

    space: tuple[int, int] | None = None
    error: str = ""
    reasons: Sequence[str] | None = None
    steps: Sequence[str] = ()


async def health(session: Session) -> Report:
    """Return one sentence and the findings, the worst first. Status 1 if one of them needs action now.

    Raises `MetadataError`, also if the store does not answer within `HEALTH_S`.
    """
    from bookies.errors import MetadataError

    try:
        async with asyncio.timeout(HEALTH_S):
            findings = await cluster_findings(session)
    except TimeoutError as error:
        text = f"the metadata store {session.driver.uri} did not answer within {HEALTH_S:.0f} s"
        raise MetadataError(text) from error
    sentence = _sentence(findings)
    level = findings[0].level
    facts = {
        "ok": level == "ok",
        "level": level,
        "sentence": sentence,
        "observed_ms": session.runtime.clock.wall_ms(),
        "findings": [to_builtins(finding) for finding in findings],
    }
    lines = [sentence]
    for finding in findings:
        lines.append(
            f"{finding.level:>5}  {finding.what}" + (f"\n       -> {finding.remedy}" if finding.remedy else "")
        )
    return Report(facts, lines, int(level == "bad"))


def _sentence(findings: Sequence[Finding]) -> str:
    """Return whether all is well, and if not, the worst finding."""
    problems = [finding for finding in findings if finding.level != "ok"]
    if not problems:
        facts = sorted(findings, key=lambda finding: (finding.about != WRITES, finding.about != RECOVERY))
        return f"All is well: {', and '.join(finding.what for finding in facts[:2])}."
    worst, more = problems[0], len(problems) - 1
    others = f" There {'is one more finding' if more == 1 else f'are {more} more findings'}." if more else ""
    what = _brief(worst.what)
    if worst.level == "bad":
        return f"Act now: {what}.{others}"
    can_write = any(finding.about == WRITES and finding.level == "ok" for finding in findings)
    return f"{'Writes work, but' if can_write else 'Not all is well:'} {what}.{others}"


def _brief(text: str) -> str:
    """Return the beginning of a finding, up to a place where a sentence may end."""
    text = text.partition("; ")[0]
    while len(text) > BRIEF and ", " in text:
        text = text.rpartition(", ")[0]
    return text


async def cluster_findings(session: Session) -> list[Finding]:
    """Return the findings about a cluster, the worst first. Raises `MetadataError`."""
    from bookies.metadata.shared import BookieNotes
    from bookies.replication.operator.status import read_status

    now_ms = session.runtime.clock.wall_ms()
    bookies = await session.client.bookies()
    notes = (await BookieNotes(session.driver, session.runtime.clock.wall_ms).read()).by_bookie
    registered = [bookie for bookie in bookies if bookie.mode != "down"]
    # A read-only bookie has the more interesting answer.
    asked = sorted(registered, key=lambda bookie: bookie.mode == "writable")[:ASKED_MAX]
    answers = {bookie.id: answer for bookie, answer in zip(asked, await _ask_all(session, asked), strict=True)}
    findings: list[Finding] = []
    for bookie in bookies:
        findings += _bookie_findings(bookie, notes.get(bookie.id), answers.get(bookie.id), now_ms)
    findings = list(_few(findings))
    status = await read_status(session.driver, now_ms)
    findings += [*_writable_findings(bookies, notes), *_recovery_findings(status, bookies, notes)]
    if len(registered) > len(asked):
        findings.append(Finding("ok", f"{len(registered) - len(asked):,} bookies were not asked about their disks"))
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def _few(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the first findings of each level, and the number of the others."""
    counts: Counter[str] = Counter()
    for finding in findings:
        counts[finding.level] += 1
        if counts[finding.level] <= NAMED_MAX:
            yield finding
    for level, count in counts.items():
        if count > NAMED_MAX:
            yield Finding(level, f"{count - NAMED_MAX:,} more bookies have such findings", "`bk bookie list`")


# -- bookies -----------------------------------------------------------------------------------------------------------


def _bookie_findings(bookie: BookieStatus, note: Note | None, answer: _Answer | None, now_ms: int) -> Iterator[Finding]:
    name = f"bookie {bookie.id}"
    draining = None if note is None or note.draining is None else note.draining
    if draining is not None:
        facts = {"state": draining.state, "state_ms": draining.state_ms, "since_ms": draining.since_ms}
        yield Finding(
            "ok",
            f"{name} is being drained: {state_text(facts, now_ms)}",
            f"`bk bookie drain {bookie.id}` continues it and shows what is left",
            name,
        )
    if bookie.mode == "down":
        lease = None if note is None else note.maintenance
        if lease is not None:
            reason = f" ({lease.reason})" if lease.reason else ""
            until = f"in maintenance until {time_text(lease.until_ms)}{reason}"
            yield Finding("warn", f"{name} is down, {until}", "start it before that time", name)
        else:
            remedy = (
                f"start it; if it will not return, auto-recovery recreates its replicas: `bk recovery status`, or "
                f"`bk bookie drain {bookie.id} --remove`"
            )
            yield Finding("warn", f"{name} is down", remedy, name)
        return
    if answer is None:
        if bookie.mode != "writable":
            yield Finding("warn", f"{name} is read-only", f"`bk bookie state --bookie {bookie.id}`", name)
        return
    yield from _answer_findings(name, bookie, answer, is_draining=draining is not None)


def _answer_findings(name: str, bookie: BookieStatus, answer: _Answer, *, is_draining: bool) -> Iterator[Finding]:
    if answer.space is None:
        remedy = "check its process and the network; its registration ends with its lease if it is lost"
        yield Finding("warn", f"{name} is registered but does not answer: {answer.error}", remedy, name)
        return
    total, free = answer.space
    share = 1 - free / total if total else 0.0
    disks = f"its disks are {100 * share:.0f} % full ({size_text(free)} free)" if total else "its disks are unknown"
    is_full = share >= ALMOST_FULL
    own = "; ".join(dict.fromkeys(answer.steps))
    remedy = own or ("docs/howto/free-a-full-disk.md" if is_full else f"`bk bookie state --bookie {bookie.id}`")
    if bookie.mode != "writable":
        why = "; ".join(answer.reasons or []) or (disks if is_full else "the reason is unknown here")
        yield Finding("ok" if is_draining else "warn", f"{name} is read-only: {why}", remedy, name)
    elif answer.reasons:
        yield Finding("warn", f"{name}: {'; '.join(answer.reasons)}", remedy, name)
    elif is_full:
        yield Finding("warn", f"{name} is writable, but {disks}", remedy, name)


def _writable_findings(bookies: Sequence[BookieStatus], notes: Mapping[BookieId, Note]) -> Iterator[Finding]:
    """Yield how many bookies accept writes. Writers avoid a bookie that is to be emptied, although it would."""
    emptied = {bookie for bookie, note in notes.items() if note.draining is not None}
    writable = sum(bookie.mode == "writable" and bookie.id not in emptied for bookie in bookies)
    if not writable:
        remedy = "start bookies, or end the cause of their read-only mode or their drain"
        yield Finding("bad", "no bookie accepts writes", remedy, WRITES)
    elif writable < WRITABLE_MIN:
        of = f"only {writable} of {len(bookies)} bookies {'accepts' if writable == 1 else 'accept'} writes"
        yield Finding("warn", of, "start more: the default of three replicas needs three", WRITES)
    else:
        yield Finding("ok", f"{writable:,} of {len(bookies):,} bookies accept writes", "", WRITES)


async def about_all(session: Session, bookies: Sequence[BookieStatus]) -> list[dict[str, Any]]:
    """Return what bookies answer about themselves, for JSON; without sizes, and with `unknown`, where one does not."""
    rows: list[dict[str, Any]] = []
    for bookie, answer in zip(bookies, await _ask_all(session, bookies), strict=True):
        if answer.space is None:
            rows.append({"unknown": answer.error} if bookie.mode != "down" else {})
            continue
        total, free = answer.space
        rows.append({"disk_total": total, "disk_free": free, "reasons": answer.reasons})
    return rows


async def _ask_all(session: Session, bookies: Sequence[BookieStatus]) -> list[_Answer]:
    """Ask bookies, `ASKED_MAX` at a time; those that are down are not asked."""
    answers: list[_Answer] = []
    for start in range(0, len(bookies), ASKED_MAX):
        part = bookies[start : start + ASKED_MAX]
        answers += await asyncio.gather(*(_ask(session, bookie) for bookie in part))
    return answers


async def _ask(session: Session, bookie: BookieStatus) -> _Answer:
    """Ask a bookie for its space and its conditions. Never raises for a bookie that does not answer."""
    from bookies.errors import BookKeeperError

    if bookie.mode == "down":
        return _Answer(error="it is down")
    try:
        async with asyncio.timeout(ANSWER_S):
            space = await session.client.bookie_space(bookie.id)
    except TimeoutError:
        return _Answer(error=f"no answer within {ANSWER_S:.0f} s")
    except BookKeeperError as error:
        return _Answer(error=error.message)
    reasons, steps = None, list[str]()
    if bookie.http is not None and bookie.http.startswith("http:"):  # with TLS, only its own console shows them
        try:
            async with asyncio.timeout(ANSWER_S):
                reasons, steps = await _reasons_of(session, urlsplit(bookie.http))
        except (TimeoutError, OSError, ValueError):
            reasons = None
    return _Answer(space, reasons=reasons, steps=steps)


class _Collector(asyncio.Protocol):
    """Collects what a server sends until it closes the connection. `ended`: set to the bytes."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > ANSWER_SIZE_MAX:
            self.connection_lost(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(self._data)


async def _reasons_of(session: Session, url: SplitResult) -> tuple[list[str], list[str]]:
    """Return why conditions do not hold at a bookie, and the next steps, as it tells any caller.

    Raises OSError, ValueError.
    """
    host = url.hostname or ""
    transport, protocol = await session.runtime.network.connect(host, url.port or 80, _Collector)
    try:
        head = f"GET {STATE_PATH} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        transport.write(head.encode())
        answer = await cast(_Collector, protocol).ended
    finally:
        transport.close()
    state = json.loads(answer.partition(b"\r\n\r\n")[2])
    if not isinstance(state, dict) or not isinstance(reasons := state.get("reasons"), list):
        raise ValueError("not the state of a bookie")
    steps = state.get("next")  # Older bookies do not send it.
    return list(dict.fromkeys(map(str, reasons))), list(map(str, steps)) if isinstance(steps, list) else []


# -- auto-recovery and ledgers -----------------------------------------------------------------------------------------


def _recovery_findings(
    status: RecoveryStatus, bookies: Sequence[BookieStatus], notes: Mapping[BookieId, Note]
) -> Iterator[Finding]:
    from bookies.replication.operator.status import lost_entries

    about = RECOVERY
    has_down = any(bookie.mode == "down" for bookie in bookies)
    is_draining = any(note.draining is not None for note in notes.values())
    if not status.is_enabled:
        what = "auto-recovery is disabled: lost replicas are neither noticed nor recreated"
        yield Finding("warn", what, "`bk recovery enable`", about)
    elif status.auditor is None:
        level = "bad" if has_down or status.marked else "warn"
        remedy = "set auto_recovery=true on bookies, or run `bk recovery run`"
        yield Finding(level, "no process of auto-recovery runs: lost replicas are not recreated", remedy, about)
    for process in status.gone:
        yield Finding("warn", f"the process {process} of auto-recovery has ended without notice", "restart it", about)
    reports = [report for process in status.processes for report in process.reports if report["losses"]]
    losses = {report["ledger_id"]: report["losses"][0] for report in reports}
    for ledger_id, loss in list(losses.items())[:NAMED_MAX]:
        what = f"ledger {ledger_id}: {lost_entries(loss)} are on no available bookie"
        holders = ", ".join(loss.get("evidence", ())) or "the bookies that have them"
        remedy = f"start {holders}, and keep the disks: `bk recovery why {ledger_id}`"
        yield Finding("bad", what, remedy, f"ledger {ledger_id}")
    if len(losses) > NAMED_MAX:
        yield Finding("bad", f"{len(losses) - NAMED_MAX:,} more ledgers have lost entries", "`bk recovery list`", about)
    stuck = status.stuck
    if status.marked:
        are = "ledger lacks replicas" if status.marked == 1 else "ledgers lack replicas"
        if is_draining:  # Auto-recovery marks what it moves, too.
            are = f"{'ledger is' if status.marked == 1 else 'ledgers are'} to be copied"
        repaired = f", {len(status.locks):,} being copied" if status.locks else ""
        waits = f", {len(stuck):,} cannot be repaired now{_first_cause(status, stuck[0])}" if stuck else ""
        level = "ok" if is_draining and not (has_down or stuck) else "warn"
        remedy = (
            f"`bk recovery why {stuck[0]}`" if stuck else "auto-recovery repairs them: `bk recovery status --watch`"
        )
        yield Finding(level, f"{status.marked:,} {are}{repaired}{waits}", remedy, about)
    elif not status.is_enabled:
        yield Finding("ok", "no ledger is marked as lacking replicas, but the auditor is disabled", "", about)
    else:
        yield Finding("ok", "no ledger is known to lack replicas", "", about)


def _first_cause(status: RecoveryStatus, ledger_id: int) -> str:
    """Return what a ledger waits for, as the end of a sentence; empty if no process has reported it."""
    for process in status.processes:
        for report in process.reports:
            if report["ledger_id"] == ledger_id and report["waits"]:
                wait = report["waits"][0]
                return f": ledger {ledger_id} waits for {wait['for']}; {wait['why']}"
    return ""
