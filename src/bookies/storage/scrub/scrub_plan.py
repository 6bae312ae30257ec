"""Decisions of the scrub: what comes next, how fast, when a pass is due, and which findings stand.

A pass covers everything that existed when it began; later files belong to the next one. Entry logs are checked in the
order of their last verification. So no byte stays unverified for much longer than a period, however fast others arrive.

No IO, no clock. Source: storage 3.5, 10.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from bookies.storage.scrub.scrub_format import Counts, Finding, LogProgress, Progress

FINDINGS_MAX = 1000  # findings kept; further ones are only counted
PACE = 0.8  # share of the period in which a pass should be done, so that delays do not make it late
RATE_MIN = 1 << 20  # bytes per second: small passes are done at once rather than stretched


class Plan:
    """Decisions over `progress`, which the owner persists."""

    def __init__(self, progress: Progress, period_ms: int, rate_max: int) -> None:
        self.progress = progress
        self.is_hurried = False  # an operator started the pass: use the greatest rate
        self.period_ms = period_ms
        self.rate_max = rate_max

    # -- passes --------------------------------------------------------------------------------------------------
    @property
    def is_running(self) -> bool:
        return self.progress.number > 0 and not self.progress.ended_ms

    def wait_ms(self, now_ms: int) -> int:
        """Return the time until a pass has to continue or begin. A clock that was set back makes it due too."""
        if self.is_running:
            return 0
        since = now_ms - self.progress.began_ms
        return 0 if not self.progress.number or since < 0 else max(0, self.period_ms - since)

    def begin(self, now_ms: int) -> None:
        """Begin a pass, replacing one in progress. Findings stand until they are checked again."""
        progress = self.progress
        progress.number += 1
        progress.began_ms, progress.ended_ms = now_ms, 0
        progress.index_good_ms = progress.index_good_ms or now_ms
        progress.index_cursor = -1
        progress.are_journals_done = False
        progress.counts = Counts()
        for log in progress.logs.values():
            log.began_ms, log.position, log.is_done = 0, 0, False

    def end(self, now_ms: int) -> None:
        self.progress.ended_ms = max(1, now_ms)
        self.is_hurried = False

    # -- entry logs ----------------------------------------------------------------------------------------------
    def update_logs(self, log_ids: Iterable[int], now_ms: int, *, is_new_pass: bool, is_whole: bool = True) -> None:
        """Set the logs that exist; if `is_whole`, forget all others.

        Unless `is_new_pass`, new logs wait for the next pass.
        """
        logs = self.progress.logs
        present = dict.fromkeys(log_ids)
        for log_id in [log_id for log_id in logs if log_id not in present and is_whole]:
            del logs[log_id]
        for log_id in present:
            if log_id not in logs:
                logs[log_id] = LogProgress(now_ms, is_done=not is_new_pass)

    def next_log(self, available: Collection[int], skipped: Collection[int] = ()) -> int | None:
        """Return the available log to check next: one in progress, otherwise the one verified longest ago."""
        waiting = [
            (not log.began_ms, log.good_ms, log_id)
            for log_id, log in self.progress.logs.items()
            if not log.is_done and log_id in available and log_id not in skipped
        ]
        return min(waiting)[2] if waiting else None

    def start_log(self, log_id: int, now_ms: int) -> int:
        """Start or continue a log. Return the offset to check from."""
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
        """Return bytes per second: what is left of logs of these sizes, over the rest of the period, within limits."""
        if self.is_hurried:
            return self.rate_max
        left_s = (self.progress.began_ms + PACE * self.period_ms - now_ms) / 1000
        left = self.size_left(sizes)
        wanted = left / left_s if left_s > 0 else self.rate_max
        return min(self.rate_max, max(RATE_MIN, wanted))

    def size_left(self, sizes: Mapping[int, int]) -> int:
        """Return the bytes of entry logs that the pass has still to read."""
        return sum(
            max(0, sizes.get(log_id, 0) - log.position) for log_id, log in self.progress.logs.items() if not log.is_done
        )

    def oldest_ms(self) -> int | None:
        """Return when the least recently verified byte was last verified, or first seen; None before that."""
        times = [log.good_ms for log in self.progress.logs.values()]
        if self.progress.index_good_ms:
            times.append(self.progress.index_good_ms)
        return min(times, default=None)

    # -- findings ------------------------------------------------------------------------------------------------
    def add_findings(self, candidates: Iterable[Finding]) -> list[Finding]:
        """Add findings of single entries that are not listed yet, merging neighbours. Return the new ones."""
        findings = self.progress.findings
        known: dict[tuple[int, int], list[Finding]] = {}
        for finding in findings:
            known.setdefault((finding.log_id, finding.ledger_id), []).append(finding)
        new: dict[tuple[int, int, int], Finding] = {}
        for finding in candidates:
            before = [
                old
                for old in known.get((finding.log_id, finding.ledger_id), ())
                if old.first <= finding.first <= old.last
            ]
            if not before:
                new[finding.log_id, finding.ledger_id, finding.first] = finding
            elif finding.ledger_id < 0:
                findings[findings.index(before[0])] = finding  # Update the time at which it was last found.
        fresh = merged(new[key] for key in sorted(new))
        room = max(0, FINDINGS_MAX - len(findings))
        findings += fresh[:room]
        self.progress.dropped_count += sum(finding.entry_count for finding in fresh[room:])
        return fresh

    def replace(self, finding: Finding, by: Iterable[Finding]) -> None:
        """Replace a finding by what a new check has left of it."""
        at = self.progress.findings.index(finding)
        self.progress.findings[at : at + 1] = merged(by)

    def damaged_logs(self) -> dict[int, str]:
        """Return the reason by log, of logs with damaged entries."""
        reasons: dict[int, str] = {}
        for finding in self.progress.findings:
            if finding.ledger_id >= 0:
                reasons.setdefault(finding.log_id, f"byte {finding.offset:,}: {finding.problem} (found by the scrub)")
        return reasons


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Merge findings of consecutive entries with the same problem in the same log."""
    result: list[Finding] = []
    for finding in findings:
        last = result[-1] if result else None
        if (
            last is not None
            and (last.log_id, last.ledger_id, last.problem) == (finding.log_id, finding.ledger_id, finding.problem)
            and last.last + 1 == finding.first
        ):
            result[-1] = Finding(
                last.log_id, last.offset, last.ledger_id, last.first, finding.last, last.problem, last.found_ms
            )
        else:
            result.append(finding)
    return result


class Spans:
    """Unproven parts of a file: (start, stop) offsets, ascending. Near ones are merged."""

    GAP = 4096  # bytes; spans at most this far apart are merged

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        self.failed_count = 0  # records among them whose digest is wrong

    def add(self, start: int, stop: int) -> None:
        """Add a span after all earlier ones, or overlapping the last one."""
        if self.spans and start - self.spans[-1][1] <= self.GAP:
            first, end = self.spans[-1]
            self.spans[-1] = min(first, start), max(end, stop)
        else:
            self.spans.append((start, stop))

    def take(self) -> tuple[list[tuple[int, int]], int]:
        """Return (spans, number of failed records), and clear both."""
        spans, failed = self.spans, self.failed_count
        self.spans, self.failed_count = [], 0
        return spans, failed
