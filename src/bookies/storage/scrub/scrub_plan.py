"""What the scrub decides: what comes next, how fast, when a pass is due, and which findings stand.

A pass goes over everything that was there when it began; what comes later is the next one's. Entry logs come in the
order in which they were last verified. So no byte stays unverified for much longer than a period, however fast others
arrive.

No IO, no clock. Source: storage 3.5, 10.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from bookies.storage.scrub.scrub_format import Counts, Finding, LogProgress, Progress

FINDINGS_MAX = 1000  # kept; the rest is counted
PACE = 0.8  # share of the period in which a pass is to be done, so that delays do not make it late
RATE_MIN = 1 << 20  # bytes a second: a pass over little is done at once rather than stretched


class Plan:
    """Decides over `progress`, which whoever owns it persists."""

    def __init__(self, progress: Progress, period_ms: int, rate_max: int) -> None:
        self.progress = progress
        self.is_hurried = False  # an operator wants the pass done: at the greatest rate
        self._period_ms = period_ms
        self._rate_max = rate_max

    # -- passes --------------------------------------------------------------------------------------------------
    @property
    def is_running(self) -> bool:
        return self.progress.number > 0 and not self.progress.ended_ms

    def wait_ms(self, now_ms: int) -> int:
        """How long until a pass has to go on or begin. A clock that went back makes it due too."""
        if self.is_running:
            return 0
        since = now_ms - self.progress.began_ms
        return 0 if not self.progress.number or since < 0 else max(0, self._period_ms - since)

    def begin(self, now_ms: int) -> None:
        """Begin a pass, in place of one that is under way. What was found stands until it is looked at again."""
        progress = self.progress
        progress.number += 1
        progress.began_ms, progress.ended_ms = now_ms, 0
        progress.index_good_ms = progress.index_good_ms or now_ms
        progress.index_cursor = -1
        progress.are_journals_done = False
        progress.counts = Counts()
        for each in progress.logs.values():
            each.began_ms, each.position, each.is_done = 0, 0, False

    def end(self, now_ms: int) -> None:
        self.progress.ended_ms = max(1, now_ms)
        self.is_hurried = False

    # -- entry logs ----------------------------------------------------------------------------------------------
    def see(self, log_ids: Iterable[int], now_ms: int, *, is_new_pass: bool, is_whole: bool = True) -> None:
        """These logs are there now, and no others if `is_whole`. Those that came during a pass are the next one's."""
        logs = self.progress.logs
        here = dict.fromkeys(log_ids)
        for log_id in [log_id for log_id in logs if log_id not in here and is_whole]:
            del logs[log_id]
        for log_id in here:
            if log_id not in logs:
                logs[log_id] = LogProgress(now_ms, is_done=not is_new_pass)

    def next_log(self, here: Collection[int], but: Collection[int] = ()) -> int | None:
        """Of the logs `here`, which is to be checked next: one under way, or else the one that waits for longest."""
        waiting = [
            (not each.began_ms, each.good_ms, log_id)
            for log_id, each in self.progress.logs.items()
            if not each.is_done and log_id in here and log_id not in but
        ]
        return min(waiting)[2] if waiting else None

    def start_log(self, log_id: int, now_ms: int) -> int:
        """Begin with a log, or go on; from which offset."""
        log = self.progress.logs[log_id]
        log.began_ms = log.began_ms or max(1, now_ms)
        return log.position

    def reached(self, log_id: int, position: int) -> None:
        if (log := self.progress.logs.get(log_id)) is not None:
            log.position = max(log.position, position)

    def finish_log(self, log_id: int) -> None:
        if (log := self.progress.logs.get(log_id)) is not None:
            log.good_ms = max(log.good_ms, log.began_ms)
            log.began_ms, log.is_done = 0, True

    # -- pace ----------------------------------------------------------------------------------------------------
    def rate(self, now_ms: int, sizes: Mapping[int, int]) -> float:
        """Bytes a second: what is left, of logs of these sizes, over what is left of the period, within limits."""
        if self.is_hurried:
            return self._rate_max
        left_s = (self.progress.began_ms + PACE * self._period_ms - now_ms) / 1000
        left = self.size_left(sizes)
        wanted = left / left_s if left_s > 0 else self._rate_max
        return min(self._rate_max, max(RATE_MIN, wanted))

    def size_left(self, sizes: Mapping[int, int]) -> int:
        """Bytes of entry logs that the pass has still to read."""
        return sum(
            max(0, sizes.get(log_id, 0) - each.position)
            for log_id, each in self.progress.logs.items()
            if not each.is_done
        )

    def oldest_ms(self) -> int | None:
        """When the byte was seen that has gone unverified for longest; None: nothing was seen yet."""
        seen = [each.good_ms for each in self.progress.logs.values()]
        if self.progress.index_good_ms:
            seen.append(self.progress.index_good_ms)
        return min(seen, default=None)

    # -- findings ------------------------------------------------------------------------------------------------
    def found(self, found: Iterable[Finding]) -> list[Finding]:
        """Keep those of single entries that are not known yet, neighbours together; what of it is new."""
        findings = self.progress.findings
        known: dict[tuple[int, int], list[Finding]] = {}
        for each in findings:
            known.setdefault((each.log_id, each.ledger_id), []).append(each)
        new: dict[tuple[int, int, int], Finding] = {}
        for each in found:
            before = [
                old for old in known.get((each.log_id, each.ledger_id), ()) if old.first <= each.first <= old.last
            ]
            if not before:
                new[each.log_id, each.ledger_id, each.first] = each
            elif each.ledger_id < 0:
                findings[findings.index(before[0])] = each  # It was there later, too.
        fresh = merged(new[key] for key in sorted(new))
        room = max(0, FINDINGS_MAX - len(findings))
        findings += fresh[:room]
        self.progress.dropped_count += sum(each.entry_count for each in fresh[room:])
        return fresh

    def replace(self, finding: Finding, by: Iterable[Finding]) -> None:
        """It was looked at again: this is what is left of it."""
        at = self.progress.findings.index(finding)
        self.progress.findings[at : at + 1] = merged(by)

    def damaged_logs(self) -> dict[int, str]:
        """Reason by log, of logs with damaged entries."""
        reasons: dict[int, str] = {}
        for each in self.progress.findings:
            if each.ledger_id >= 0:
                reasons.setdefault(each.log_id, f"byte {each.offset:,}: {each.problem} (found by the scrub)")
        return reasons


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Findings of consecutive entries with the same problem in one log as one each."""
    result: list[Finding] = []
    for each in findings:
        last = result[-1] if result else None
        if (
            last is not None
            and (last.log_id, last.ledger_id, last.problem) == (each.log_id, each.ledger_id, each.problem)
            and last.last + 1 == each.first
        ):
            result[-1] = Finding(
                last.log_id, last.offset, last.ledger_id, last.first, each.last, last.problem, last.found_ms
            )
        else:
            result.append(each)
    return result


class Spans:
    """Parts of a file that nothing has proven: (start, stop) offsets, ascending; near ones are one."""

    GAP = 4096  # bytes between two that are not worth being told apart

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        self.failed_count = 0  # records among them whose digest is wrong

    def add(self, start: int, stop: int) -> None:
        """Behind all that were added before, or overlapping the last one."""
        if self.spans and start - self.spans[-1][1] <= self.GAP:
            first, end = self.spans[-1]
            self.spans[-1] = min(first, start), max(end, stop)
        else:
            self.spans.append((start, stop))

    def take(self) -> tuple[list[tuple[int, int]], int]:
        """(spans, how many records have failed), and be empty again."""
        spans, failed = self.spans, self.failed_count
        self.spans, self.failed_count = [], 0
        return spans, failed
