"""Backups of a cluster: what a run lists, and what it can carry over from an earlier run. No IO.

    TO/CLUSTER/ledger-ID/ATTEMPT/...          a copy of a sealed ledger, in the form of offloaded ledgers
    TO/CLUSTER/ledger-ID/END.json             the complete copy of the ledger with this end
    TO/CLUSTER/run-RUN/metadata.jsonl         all metadata when the run began, as `bk metadata dump` writes it
    TO/CLUSTER/run-RUN/ledgers.json           `Contents`: the copies of the run, and what it lacks
    TO/CLUSTER/run-RUN/manifest.json          `RunManifest`: digests of these two; written last
    TO/CLUSTER/sweeps/SWEEP.json              directories that a run with `keep` is about to delete

A sealed ledger does not change, so a copy serves every later run. A run that was killed has no manifest; its complete
copies serve the next run, under any name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from bookies.errors import InvalidArgument, NotSupported
from bookies.model import DigestType, LedgerMetadata, LedgerState
from bookies.protocol.ledger.ledger import changed_record, closed
from bookies.protocol.ledger.offload import LABEL, PARQUET, Offload

FORMAT = 1
FORMAT_WITH_LABELS = 2  # of a ledger's record


class LedgerCopy(Struct, frozen=True):
    """Complete copy of a ledger. `rows`, `bytes`, `crc`: of its content; `index`: CRC-32C of its index file.

    `files`: name and size in bytes of each.
    """

    ledger: int
    attempt: str
    rows: int
    bytes: int
    crc: int
    index: int
    at_ms: int
    ctime_ms: int | None = None
    files: tuple[tuple[str, int], ...] = ()

    def is_of(self, record: LedgerMetadata) -> bool:
        """Report whether it is the copy of the ledger that this sealed record describes."""
        identity = self.ledger, self.ctime_ms, self.rows, self.bytes
        return identity == (record.ledger_id, record.ctime_ms, record.last_entry_id + 1, record.length)

    def offload(self, uri: str) -> Offload:
        """Return the copy in the form in which a record names it. `uri`: its directory."""
        return Offload(self.attempt, uri, PARQUET, self.rows, self.bytes, self.crc, self.index, self.at_ms)


class Omitted(Struct, frozen=True):
    """Ledger of the metadata that the run has no copy of."""

    ledger: int
    reason: str


class Contents(Struct, frozen=True):
    """Ledgers of a run. `deleted`: ledgers of the run before it that no longer existed."""

    copies: tuple[LedgerCopy, ...]
    omitted: tuple[Omitted, ...]
    deleted: tuple[int, ...]


class FileDigest(Struct, frozen=True):
    """Size in bytes and SHA-256 of a file."""

    size: int
    sha256: str


class RunManifest(Struct, frozen=True):
    """Description of a complete run. `base`: the run before it, from which copies were carried over; empty: none.

    `cluster`: instance id of the source. Times: wall time, ms since 1970. `metadata` is as of `began_ms`.
    """

    format: int
    run: str
    cluster: str
    base: str
    began_ms: int
    ended_ms: int
    copies: int
    bytes: int
    omitted: int
    deleted: int
    metadata: FileDigest
    ledgers: FileDigest


def end_name(record: LedgerMetadata) -> str:
    """Return the name of the file that names the complete copy of a sealed ledger."""
    return f"end-{record.ctime_ms or 0}-{record.last_entry_id + 1}-{record.length}.json"


def carried_over(
    before: Iterable[LedgerCopy], sealed: Mapping[int, LedgerMetadata], existing: Iterable[int]
) -> tuple[dict[int, LedgerCopy], tuple[int, ...]]:
    """Return the copies of an earlier run that serve this one, by ledger, and the ids of its deleted ledgers.

    `sealed`: records that are to be backed up; `existing`: ids of all ledgers.
    """
    ids = {*existing}
    copies: dict[int, LedgerCopy] = {}
    deleted = []
    for copy in before:
        record = sealed.get(copy.ledger)
        if record is not None and copy.is_of(record):
            copies[copy.ledger] = copy
        elif copy.ledger not in ids:
            deleted.append(copy.ledger)
    return copies, tuple(deleted)


def sealed_as(record: LedgerMetadata, copy: LedgerCopy) -> LedgerMetadata:
    """Return the record of the ledger with the end that its copy has: it may have been open."""
    return closed(record, copy.rows - 1, copy.bytes)


def unwritten(record: LedgerMetadata, labels: Mapping[str, bytes]) -> LedgerMetadata:
    """Return the record with which a ledger of a backup is created: open and empty, without the labels of an offload.

    `labels`: added. The caller chooses the bookies.
    """
    kept = {name: value for name, value in record.custom_metadata.items() if not name.startswith(LABEL)}
    return changed_record(
        record,
        state=LedgerState.OPEN,
        last_entry_id=-1,
        length=0,
        ensembles=((0, record.ensemble_at(0)),),
        custom_metadata=kept | dict(labels),
        digest_type=record.digest_type or DigestType.CRC32C,  # None: of format 1
        password=record.password or b"",
        format_version=max(record.format_version, FORMAT_WITH_LABELS),
    )


def kept_runs(runs: Iterable[RunManifest], count: int) -> tuple[list[RunManifest], list[RunManifest]]:
    """Return the newest `count` runs, and the others, the older first."""
    ordered = sorted(runs, key=lambda run: (run.ended_ms, run.run))
    return ordered[-count:], ordered[:-count]


def chosen_run(runs: Iterable[RunManifest], name: str | None, place: str) -> RunManifest:
    """Return the run of that name; None: the latest. `place`: for messages. Raises `InvalidArgument`."""
    ordered = sorted(runs, key=lambda run: (run.ended_ms, run.run))
    chosen = [run for run in ordered if name in (None, run.run)]
    if not chosen:
        names = ", ".join(run.run for run in ordered[-5:])
        raise InvalidArgument(
            f"{place} has no complete backup run {name}; the latest are {names}"
            if names
            else f"{place} has no complete backup run: `bk spark backup` writes one"
        )
    return chosen[-1]


def pack(value: Struct) -> bytes:
    """Return a manifest, contents or a copy as JSON."""
    return msgspec.json.encode(value)


def parse_run(data: bytes, place: str) -> RunManifest:
    """Parse a manifest. `place`: for messages. Raises `InvalidArgument`, `NotSupported` (a later format)."""
    try:
        run = msgspec.json.decode(data, type=RunManifest)
    except msgspec.DecodeError as error:
        raise InvalidArgument(
            f"{place} is no manifest of a backup, or is damaged: read another run with --backup-run; to write and to "
            f"delete runs, delete the directory of this one first ({error})"
        ) from error
    if run.format > FORMAT:
        raise NotSupported(f"{place} has format {run.format}; this version of bookies reads up to {FORMAT}")
    return run


def parse_contents(data: bytes, place: str) -> Contents:
    """Parse the list of ledgers. Raises `InvalidArgument`."""
    try:
        return msgspec.json.decode(data, type=Contents)
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"{place} is no list of ledgers of a backup, or is damaged: {error}") from error


def parse_copy(data: bytes) -> LedgerCopy | None:
    """Parse the description of a copy; None: it is damaged, and the ledger has to be copied again."""
    try:
        return msgspec.json.decode(data, type=LedgerCopy)
    except msgspec.DecodeError:
        return None
