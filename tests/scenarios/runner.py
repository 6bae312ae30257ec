"""Run scenario files: commands to the protocol cores, and what they answer, as golden text.

A file opens with why it exists. Then steps: one or more command lines, `----`, the answer, an empty line. Lines that
begin with `#` are comments. `BOOKIES_UPDATE_SCENARIOS=1` writes the answers given now into the files; review the diff.
"""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from bookies import errors
from bookies.model import Ensemble, LedgerMetadata, LedgerState

ERRORS: dict[str, type[errors.BookKeeperError]] = {
    "timeout": errors.BookieTimeout,
    "unreachable": errors.BookieUnreachable,
    "busy": errors.BookieBusy,
    "read-only": errors.BookieReadOnly,
    "write": errors.WriteFailed,
    "read": errors.ReadFailed,
    "limbo": errors.DataUnknown,
    "digest": errors.DigestMismatch,
    "no-entry": errors.EntryNotFound,
    "no-ledger": errors.LedgerUnknownToBookie,
    "fenced": errors.LedgerFenced,
    "unauthorized": errors.Unauthorized,
    "unsupported": errors.NotSupported,
    "client-closed": errors.ClientClosed,
    "no-bookies": errors.NotEnoughBookies,
    "deleted": errors.LedgerNotFound,
    "session": errors.SessionExpired,
}


def metadata_of(quorums: str, ensemble: Ensemble, first: int = 0) -> LedgerMetadata:
    """`quorums` as E/Qw/Qa; the last fragment starts at `first`, one before it at 0 if that is later."""
    size, write_quorum, ack_quorum = map(int, quorums.split("/"))
    assert len(ensemble) == size
    ensembles: tuple[tuple[int, Ensemble], ...] = ((first, ensemble),)
    if first:
        ensembles = ((0, tuple(f"old{position}" for position in range(size))), *ensembles)  # type: ignore[misc]
    return LedgerMetadata(7, size, write_quorum, ack_quorum, ensembles)


def ids_of(text: str) -> list[int] | range:
    """`0-3,5` as a list; a single run as a range."""
    runs = [run.split("-") for run in text.split(",")]
    ranges = [range(int(run[0]), int(run[-1]) + 1) for run in runs]
    return ranges[0] if len(ranges) == 1 else [entry_id for each in ranges for entry_id in each]


def text_of_ids(ids: Any) -> str:
    runs: list[list[int]] = []
    for entry_id in ids:
        if runs and entry_id == runs[-1][1] + 1:
            runs[-1][1] = entry_id
        else:
            runs.append([entry_id, entry_id])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


class Session:
    """One scenario. `load`: gives the module of a name, so that a mutant can be run instead."""

    def __init__(self, load: Callable[[str], ModuleType] = importlib.import_module) -> None:
        self.load = load
        self.add: Any = None
        self.fence: Any = None
        self.read: Any = None
        self.scan: Any = None

    def run(self, line: str) -> list[str]:
        name, *arguments = line.split()
        return getattr(self, "do_" + name.replace("-", "_"))(*arguments) or ["nothing"]

    # -- the add pipeline ----------------------------------------------------------------------------------------

    def do_ledger(self, quorums: str, *words: str) -> list[str]:
        options = dict(word.split("=") for word in words if "=" in word)
        ensemble = tuple(word for word in words if "=" not in word)
        metadata = metadata_of(quorums, ensemble, int(options.pop("first", 0)))
        if "recovery_start" in options:
            metadata = metadata.replace(state=LedgerState.IN_RECOVERY)
        start = options.pop("recovery_start", None)
        module = self.load("bookies.protocol.ledger.add")
        self.add = module.AddPipeline(
            metadata,
            rules=module.AddRules(**{key: int(value) for key, value in options.items()}),
            recovery_start=None if start is None else int(start),
        )
        return ["ready"]

    def do_add(self, count: str = "1") -> list[str]:
        return self.effects(self.add.add(int(count)))

    def do_ack(self, replica: str, ids: str) -> list[str]:
        position, bookie = replica.split(":")
        return self.effects(self.add.acknowledged(int(position), bookie, ids_of(ids)))

    def do_fail(self, replica: str, ids: str, error: str) -> list[str]:
        position, bookie = replica.split(":")
        return self.effects(self.add.failed(int(position), bookie, ids_of(ids), ERRORS[error]()))

    def do_changed(self, state: str, *ensemble: str) -> list[str]:
        """The metadata store's record: OPEN with a new last ensemble, or CLOSED or IN_RECOVERY."""
        record = self.add.metadata
        if ensemble:
            ledger = self.load("bookies.protocol.ledger.ledger")
            record = ledger.with_ensemble(record, self.add.last_add_confirmed + 1, ensemble)
        record = record.replace(state=LedgerState[state])
        return self.effects(self.add.metadata_changed(record))

    def do_chosen(self, *ensemble: str) -> list[str]:
        return self.effects(self.add.ensemble_chosen(ensemble))

    def do_change_failed(self, error: str) -> list[str]:
        return self.effects(self.add.change_failed(ERRORS[error]()))

    def do_close(self) -> list[str]:
        return self.effects(self.add.close())

    def do_abandon(self) -> list[str]:
        return self.effects(self.add.abandon(errors.LedgerClosed()))

    def do_state(self) -> list[str]:
        pipeline = self.add
        fragments = [
            f"{'in memory ' if first in pipeline.fragments else ''}{first}: {' '.join(ensemble)}"
            for first, ensemble in pipeline.metadata.ensembles
        ]
        words = [
            f"confirmed={pipeline.last_add_confirmed} pushed={pipeline.last_add_pushed}",
            f"answered<{pipeline.answered_bound} header={pipeline.header_last_add_confirmed}",
            f"ensemble={' '.join(pipeline.ensemble)}",
        ]
        if pipeline.is_changing:
            words.append("changing")
        if pipeline.error:
            words.append(f"ended by {type(pipeline.error).__name__}")
        return [", ".join(words), *(f"fragment {each}" for each in fragments)]

    def effects(self, effects: Any) -> list[str]:
        return [self.effect(effect) for effect in effects]

    def effect(self, effect: Any) -> str:
        kind = type(effect).__name__
        if kind == "Send":
            return f"send {effect.position}:{effect.bookie} {text_of_ids(effect.entry_ids)}"
        if kind == "Confirmed":
            return f"confirmed {text_of_ids(range(effect.first, effect.last + 1))}"
        if kind == "Failed":
            return f"failed {text_of_ids(range(effect.first, effect.last + 1))} {type(effect.error).__name__}"
        if kind == "ChangeEnsemble":
            failed = " ".join(f"{position}:{bookie}" for position, bookie in effect.failed)
            excluded = f" excluding {' '.join(effect.excluded)}" if effect.excluded else ""
            return f"change from {effect.first_entry_id} replace {failed}{excluded}"
        if kind == "CloseLedger":
            return f"close at {effect.last_entry_id}{' unless in recovery' if effect.is_implicit else ''}"
        if kind == "WriteBack":
            return f"write back {text_of_ids(range(effect.first, effect.last + 1))}"
        if kind == "EndOfLedger":
            return f"ends at {effect.last_entry_id}"
        assert kind == "Undecided", kind
        return f"undecided {effect.entry_id}"

    # -- placement -----------------------------------------------------------------------------------------------

    def do_replace(self, *words: str) -> list[str]:
        """`replace a b c failed 1:b 2:c writable d e [exclude f]`."""
        parts: dict[str, list[str]] = {"ensemble": []}
        into = "ensemble"
        for word in words:
            if word in ("failed", "writable", "exclude"):
                into = word
                parts[into] = []
            else:
                parts[into].append(word)
        failed = [(int(each.split(":")[0]), each.split(":")[1]) for each in parts["failed"]]
        placement = self.load("bookies.protocol.placement.placement")
        try:
            new = placement.replace_failed(
                tuple(parts["ensemble"]), failed, parts["writable"], parts.get("exclude", [])
            )
        except errors.NotEnoughBookies:
            return ["NotEnoughBookies"]
        return [" ".join(new)]

    # -- fencing and recovery reads ------------------------------------------------------------------------------

    def do_fence(self, quorums: str, first: str = "first=0") -> list[str]:
        size = int(quorums.split("/")[0])
        ensemble: Any = tuple(f"b{position}" for position in range(size))
        self.fence_metadata = metadata_of(quorums, ensemble, int(first.split("=")[1]))
        self.fence = self.load("bookies.protocol.ledger.fence").FenceRound(self.fence_metadata)
        return ["ready"]

    def do_has(self, position: str, lac: str, length: str) -> list[str]:
        """A fenced bookie's last entry: `has POSITION lac=N length=N`."""
        values = int(lac.removeprefix("lac=")), int(length.removeprefix("length="))
        return self.verdict(self.fence.found(int(position), *values))

    def do_hears(self, position: str, error: str) -> list[str]:
        """Anything else that the bookie answers to the fencing request."""
        return self.verdict(self.fence.failed(int(position), ERRORS[error]()))

    def verdict(self, verdict: Any) -> list[str]:
        if verdict is None:
            return ["wait"]
        if type(verdict).__name__ == "NotFenced":
            return [f"not fenced: {type(verdict.error).__name__}"]
        start = self.load("bookies.protocol.ledger.fence").recovery_start(
            self.fence_metadata, verdict.last_add_confirmed
        )
        return [f"fenced: lac={verdict.last_add_confirmed} length={verdict.length}, start behind {start}"]

    def do_read(self, quorums: str, entry_id: str, *suspects: str) -> list[str]:
        """A recovery read: `read E/Qw/Qa ENTRY [suspect bookies]`."""
        size = int(quorums.split("/")[0])
        ensemble: Any = tuple(f"b{position}" for position in range(size))
        recover = self.load("bookies.protocol.ledger.recover")
        self.read = recover.EntryRead(metadata_of(quorums, ensemble), int(entry_id), frozenset(suspects))
        return ["ready"]

    def do_ask(self) -> list[str]:
        bookie = self.read.next()
        return [f"ask {bookie}" if bookie else "nobody to ask"]

    def do_finds(self) -> list[str]:
        return [self.read.found().value]

    def do_lacks(self, bookie: str, error: str) -> list[str]:
        verdict = self.read.failed(bookie, ERRORS[error]())
        if verdict is None:
            return ["go on"]
        return [f"{verdict.value}: {type(self.read.error).__name__}" if verdict.value != "found" else "found"]

    def do_tail(self, start: str, width: str) -> list[str]:
        """Scan a tail: `tail start=9 width=3`."""
        self.scan = self.load("bookies.protocol.ledger.recover").TailScan(int(start[6:]), int(width[6:]))
        return self.do_reads()

    def do_reads(self) -> list[str]:
        return [f"read {text_of_ids(ids)}"] if (ids := self.scan.reads()) else []

    def do_decided(self, ids: str, verdict: str) -> list[str]:
        recover = self.load("bookies.protocol.ledger.recover")
        run = list(ids_of(ids))
        return self.effects(self.scan.decided(run[0], run[-1], recover.Verdict(verdict))) + self.do_reads()


@dataclasses.dataclass
class Step:
    commands: list[str]
    expected: list[str]


def parse(text: str) -> tuple[str, list[Step]]:
    """(the opening comment, the steps)."""
    opening, _, body = text.partition("\n\n")
    assert opening.startswith("#"), "a scenario opens with why it exists"
    steps = []
    for block in body.strip().split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        if not lines:
            continue
        at = lines.index("----") if "----" in lines else len(lines)
        steps.append(Step(lines[:at], lines[at + 1 :]))
    return opening, steps


def play(steps: list[Step], load: Callable[[str], ModuleType] = importlib.import_module) -> list[Step]:
    """The steps with the answers given now."""
    session = Session(load)
    return [Step(step.commands, [line for command in step.commands for line in session.run(command)]) for step in steps]


def rewrite(path: pathlib.Path) -> None:
    """Put the answers given now into a file; comments stay where they are."""
    opening, _, body = path.read_text().partition("\n\n")
    session = Session()
    blocks = []
    for block in body.strip().split("\n\n"):
        lines = block.splitlines()
        at = lines.index("----") if "----" in lines else len(lines)
        commands = [line for line in lines[:at] if not line.startswith("#")]
        answers = [line for command in commands for line in session.run(command)]
        blocks.append("\n".join([*lines[:at], *(["----", *answers] if commands else [])]))
    path.write_text(opening + "\n\n" + "\n\n".join(blocks) + "\n")
