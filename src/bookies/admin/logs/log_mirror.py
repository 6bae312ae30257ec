"""`bk log mirror`: copies logs to another cluster continuously, reports the lag, and switches over."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.command_line import OneOf, Option, verb
from bookies.admin.shared.common import metadata_uri, run_async, time_text
from bookies.admin.shared.report import Report
from bookies.units import duration_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from bookies.client.client import Client
    from bookies.client.mirror import LogMirror, MirrorState
    from bookies.errors import BookKeeperError
    from bookies.protocol.log import Position
    from bookies.protocol.log.migration import MissingRange

SOURCE_S = 5.0  # seconds that the source has to answer


def _mirror(arguments: argparse.Namespace) -> Report:
    if arguments.source_lost and not arguments.switch_over:
        raise UsageError("--source-lost is for --switch-over: the mirror accepts appends without its source")
    if arguments.drop and (arguments.status or arguments.switch_over):
        raise UsageError("--drop is for the beginning of a mirror: leave out --status and --switch-over")
    if arguments.status:
        return run_async(lambda: _status(arguments))
    if arguments.source_lost:
        return run_async(lambda: _promote(arguments))
    return run_async(lambda: _copy(arguments))


def _connected(uri: str) -> AbstractAsyncContextManager[Client]:
    from bookies.client.connect import connect

    return connect(uri)


async def _copy(arguments: argparse.Namespace) -> Report:
    """Mirror the logs until interrupted, until there is nothing left to copy, or until the switch-over is done."""
    from bookies.client.mirror import LogMirror
    from bookies.errors import LogFenced

    names = list(dict.fromkeys(arguments.logs))
    ended: dict[str, BookKeeperError | None] = {}
    progress = Progress("steps", None, quiet=arguments.json)
    async with _connected(metadata_uri(arguments)) as source, _connected(arguments.to) as target:
        mirrors = [LogMirror(source, target, name) for name in names]
        try:
            for mirror in mirrors:
                try:
                    await mirror.begin(drops=arguments.drop)
                except LogFenced as refusal:  # It was switched over; the others go on.
                    _say(progress, f"log {mirror.name}: {refusal}")
                    ended[mirror.name] = refusal
            begun = [mirror for mirror in mirrors if mirror.name not in ended]
            if arguments.switch_over:
                ends = [(mirror.name, await mirror.switch_over(arguments.to)) for mirror in begun]
                return _switched(ends, int(bool(ended)))
            results = await asyncio.gather(*(_run(mirror, progress, is_once=arguments.once) for mirror in begun))
            ended |= zip((mirror.name for mirror in begun), results, strict=True)
            progress.clear()
        finally:
            for mirror in mirrors:
                await mirror.close()
        facts, lines = [], []
        for mirror in mirrors:
            error = ended[mirror.name]
            text = "the mirror has all that the source has confirmed" if error is None else f"it ended: {error}"
            lines.append(f"log {mirror.name}: {text}")
            row: dict[str, Any] = {"log": mirror.name, "error": None if error is None else str(error)}
            facts.append(row | _seen_facts(mirror.state))
        return Report(facts, lines, int(any(error is not None for error in ended.values())))


async def _run(mirror: LogMirror, progress: Progress, *, is_once: bool) -> BookKeeperError | None:
    """Mirror one log; return the error that ends it, so that the others go on."""
    from bookies.errors import BookKeeperError

    last = ""
    steps = 0

    def note(error: BookKeeperError | None) -> None:
        nonlocal last, steps
        steps += 1
        progress.update(steps, f"log {mirror.name}")
        text = "" if error is None else str(error)
        if text != last and text:
            _say(progress, f"log {mirror.name}: {text}; trying again")
        last = text

    try:
        await mirror.run(note, is_once=is_once)
    except BookKeeperError as error:
        _say(progress, f"log {mirror.name}: {error}")
        return error
    return None


def _say(progress: Progress, text: str) -> None:
    progress.clear()
    print(f"bk log mirror: {text}", file=sys.stderr, flush=True)


def _switched(ends: Sequence[tuple[str, Position | None]], status: int = 0) -> Report:
    lines = []
    for name, end in ends:
        place = "its beginning" if end is None else str(end)
        lines.append(f"log {name}: the source is closed, and the mirror accepts appends from {place} on")
    return Report([{"log": name, "end": None if end is None else str(end)} for name, end in ends], lines, status)


async def _promote(arguments: argparse.Namespace) -> Report:
    """Let the mirrors accept appends although the source does not answer."""
    from bookies.client.mirror import mirror_state, promote
    from bookies.protocol.log.migration import end_of

    facts: list[dict[str, Any]] = []
    lines: list[str] = []
    async with _connected(arguments.to) as target:
        for name in dict.fromkeys(arguments.logs):
            state = await mirror_state(target, name)
            if await _answers(metadata_uri(arguments), name, state):
                raise UsageError(
                    f"the source answers for log {name}: switch over without --source-lost, which loses nothing"
                )
            end = end_of(await promote(target, name))
            missing = _seen_only(state, end)
            lines.append(f"log {name}: the mirror accepts appends from {end or 'its beginning'} on")
            lines += _lost_lines(name, state, missing)
            facts.append({"log": name, "end": str(end) if end else None, "lost": _ranges(missing)} | _seen_facts(state))
    lines.append(
        f"entries that the source confirmed later are not known: when it can be read again, `bk log mirror LOG --to "
        f"{arguments.to} --status` names them"
    )
    return Report(facts, lines)


async def _answers(uri: str, name: str, state: MirrorState | None) -> bool:
    """Report whether the source's log can be read at its end. Raises `UsageError` if it is not the mirror's source."""
    from bookies.client.mirror import whole_list
    from bookies.errors import BookKeeperError

    try:
        async with asyncio.timeout(SOURCE_S), _connected(uri) as source:
            cluster = await source.administration().instance_id()
            if state is not None and state.source != f"{cluster}/{name}":
                raise UsageError(
                    f"{uri} is cluster {cluster}, and the mirror follows {state.source}: give the metadata store of "
                    "the source with --metadata"
                )
            extents = [
                one for one in (await whole_list(source, name)).extents if one.last is not None and one.last >= 0
            ]
            if extents:
                async with await source.administration().open(extents[-1].storage) as reader:
                    await reader.read_entry(reader.last_add_confirmed)
            return True
    except (BookKeeperError, TimeoutError, OSError):
        return False


def _seen_only(state: MirrorState | None, end: Position | None) -> list[MissingRange]:
    """Return the entries that the mirror saw in the source and does not have, if they are in its last ledger."""
    from bookies.protocol.log.migration import MissingRange

    if state is None or state.seen is None or end is None or state.seen[0] != end.ledger_id:
        return []
    return [MissingRange(end.ledger_id, end.entry_id, state.seen[1] - 1)] if state.seen[1] > end.entry_id else []


def _lost_lines(name: str, state: MirrorState | None, missing: list[MissingRange]) -> Iterator[str]:
    from bookies.client.mirror import ranges_text

    if state is None:
        return
    seen = "nothing" if state.seen is None else f"entries up to {state.seen[0]}:{state.seen[1] - 1}"
    yield f"log {name}: the source had confirmed {seen} when it was last seen, at {time_text(state.at_ms)}"
    if missing:
        yield f"log {name}: only the source has {ranges_text(missing)}"
    elif state.rows_behind:
        yield f"log {name}: some {state.rows_behind:,} entries had not been copied then"


async def _status(arguments: argparse.Namespace) -> Report:
    """Report the lag of each mirror, and what only the source has.

    The status is 1 if there is such an entry, or after a switch-over if the source does not answer.
    """
    facts, lines = [], []
    async with _connected(arguments.to) as target:
        for name in dict.fromkeys(arguments.logs):
            row, text = await _status_of(arguments, target, name)
            facts.append(row)
            lines += text
    return Report(facts, lines, int(any(row["lost"] != [] for row in facts)))


async def _status_of(arguments: argparse.Namespace, target: Client, name: str) -> tuple[dict[str, Any], list[str]]:
    from bookies.client.mirror import mirror_state, ranges_text, whole_list
    from bookies.errors import BookKeeperError, LogNotFound
    from bookies.protocol.log.migration import is_mirror, missing_in

    state = await mirror_state(target, name)
    try:
        log = await whole_list(target, name)
    except LogNotFound:
        return {"log": name, "mirror": False, "lost": []}, [f"log {name}: the target has no such log"]
    facts: dict[str, Any] = {"log": name, "mirror": is_mirror(log), "lost": []} | _seen_facts(state)
    if is_mirror(log):
        return facts, [*_lag_lines(name, state)]
    what = "it is no mirror" if state is None else "it was switched over"
    try:
        async with asyncio.timeout(SOURCE_S), _connected(metadata_uri(arguments)) as source:
            missing = missing_in(await whole_list(source, name, with_unconfirmed=True), log)
    except (BookKeeperError, TimeoutError, OSError) as error:
        facts["lost"] = None
        return facts, [f"log {name}: {what}; the source does not answer: {error or 'timeout'}"]
    facts["lost"] = _ranges(missing)
    if missing:
        return facts, [f"log {name}: {what}; only the source has {ranges_text(missing)}"]
    return facts, [f"log {name}: {what}, and has all entries of the source"]


def _lag_lines(name: str, state: MirrorState | None) -> Iterator[str]:
    if state is None:
        yield f"log {name}: nothing has been copied yet"
        return
    now_ms = int(time.time() * 1000)
    copied = "nothing" if state.copied is None else f"entries before {state.copied[0]}:{state.copied[1]}"
    yield (
        f"log {name}: has {copied}; {state.rows_behind:,} entries behind, "
        f"{duration_text(state.seconds_behind(now_ms))}; last progress {duration_text(_age_s(state))} ago"
    )


def _age_s(state: MirrorState) -> float:
    return max(0.0, time.time() - state.at_ms / 1000)


def _seen_facts(state: MirrorState | None) -> dict[str, Any]:
    if state is None:
        return {}
    return {
        "source": state.source,
        "copied": state.copied,
        "seen": state.seen,
        "rows_behind": state.rows_behind,
        "seconds_behind": state.seconds_behind(int(time.time() * 1000)),
        "at_ms": state.at_ms,
        "age_s": round(_age_s(state), 3),
    }


def _ranges(missing: Sequence[MissingRange]) -> list[dict[str, int]]:
    return [{"ledger": one.ledger_id, "first": one.first, "last": one.last} for one in missing]


VERBS = (
    verb(
        "log mirror",
        "copy logs to another cluster continuously, at the same positions, until interrupted",
        "example:  bk log mirror orders returns --to zk://other:2181/ledgers\n"
        "          bk log mirror orders --to zk://other:2181/ledgers --switch-over",
        _mirror,
        Option("logs", "logs of this cluster to mirror", values="+"),
        Option("--to URI", "metadata store of the other cluster", is_required=True),
        OneOf(
            Option("--status", "print how far the mirrors are behind, and what only the source has", bool),
            Option("--once", "stop when everything that is confirmed was copied", bool),
            Option(
                "--switch-over",
                "close the logs here for ever, copy the rest, and let the mirrors accept appends",
                bool,
            ),
        ),
        Option("--source-lost", "with --switch-over: the source does not answer, and is given up", bool),
        Option(
            "--drop",
            "mirror to a former source: leave out of its log the entries that only it has; they stay in their ledgers",
            bool,
        ),
    ),
)
