"""Transactions: ledgers written first and appended to logs later, all at once; the legal steps of each participant.

A transaction has a name, (application, version): its batch. Each task writes its own ledgers, closes them, and reports
them. A *committer* appends all of them to their logs with one conditional write: the records of the logs and of the
ledgers must have the versions that were read. An *abort* or the *reaper* deletes ledgers of a transaction with one
conditional write too: the log must have the version at which it did not list them. So a list never names a deleted
ledger, whichever messages are late, lost or repeated:

* a swap that lands after an abort has read the list makes the abort's condition false, and it reads again;
* a deletion that lands after a committer has checked the ledgers makes its condition false, and it is refused.

A committer that cannot determine the outcome of its swap reads again. If its ledgers are in the list, or the list names
its transaction or a later one as the last of its application, it is committed. Otherwise it was not committed at this
version of the list, and the committer tries again.

The list keeps the last transaction of each application (`txns`). That makes a repetition with new ledgers a no-op:
the new ledgers are deleted. `query` distinguishes the runs of one application. A stream that starts over counts from 0
again, and would be skipped silently as committed; so it is refused.

Source: spark 4.2, 4.3, 4.5.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bookies.errors import LogNotFound, TransactionRefused
from bookies.model import LedgerMetadata
from bookies.protocol.log.log_model import (
    CUT_OVER,
    LEFT_OUT,
    MIGRATED_FROM,
    PARTED,
    LedgerEnd,
    Manifest,
    Written,
    appended,
    check_held,
)

RETENTION_MS = 30 * 24 * 3600 * 1000  # since an application's last transaction; then the list drops it
REPLAY_GRACE_MS = 10 * 60 * 1000  # a repetition of a committed transaction may be writing its ledgers just now
ORPHAN_GRACE_MS = 24 * 3600 * 1000  # an unknown transaction may be in progress for this time
LABELS = ("log", "token", "app", "version", "query", "partition", "attempt", "created")


class Transaction(Struct, frozen=True):
    """Transaction of one application.

    version: increases within one application.
    query: the source of the versions; "" for a batch.
    ledgers: log -> the ledgers to append, in this order.
    tokens: log -> its token when the ledgers were written, so that no later log of that name gets them.
    is_kept: record it in `txns`; otherwise only its ledgers show that it was committed, and `app` must be unique.
    is_replacing: the logs hold no other ledgers afterwards.
    is_consecutive: it follows the transaction below it; a log that knows its query and lacks that one has lost it.
    """

    app: str
    version: int
    query: str
    ledgers: Mapping[str, tuple[Written, ...]]
    tokens: Mapping[str, str]
    is_kept: bool = True
    is_replacing: bool = False
    is_consecutive: bool = False

    @property
    def name(self) -> str:
        return f"{self.app}:{self.version}"

    @property
    def ledger_ids(self) -> list[int]:
        return [ledger.ledger_id for written in self.ledgers.values() for ledger in written]


class Committed(NamedTuple):
    """Decision: it was committed before. `unlisted`: log -> its ledgers that no list names, to be deleted."""

    unlisted: Mapping[str, list[int]]


class OpenTail(NamedTuple):
    """Decision: end the open ledgers at the end of logs first. `ledgers`: log -> the older first."""

    ledgers: Mapping[str, list[int]]


class Swap(NamedTuple):
    """Decision: write these lists, if the lists that were read, and all ledgers, still have their versions."""

    manifests: Mapping[str, Manifest]


def decide(
    manifests: Mapping[str, Manifest], txn: Transaction, ends: Mapping[int, LedgerEnd], now_ms: int
) -> Committed | OpenTail | Swap:
    """Decide a committer's next step. `manifests`: lists of the transaction's logs. `ends`: of ledgers that were ended.

    Raises `TransactionRefused` (the application's last transaction is another query's, or not the one below; or some
    logs have it, and others lost it with their source), `LogNotFound`, `LogFenced` (appends to the log are disallowed).
    """
    for log, manifest in manifests.items():
        if manifest.is_deleting:
            raise LogNotFound(f"log {log} is being deleted")
    if known := [log for log, manifest in manifests.items() if _knows(manifest, txn, txn.ledgers[log])]:
        for log, manifest in manifests.items():
            if log not in known and txn.ledgers[log] and not manifest.extra.keys().isdisjoint((PARTED, CUT_OVER)):
                raise TransactionRefused(
                    f"log {known[0]} has version {txn.version} of application {txn.app!r}, and log {log} lost it when "
                    f"it was moved or restored: append the rows of {log} alone, under another txnAppId"
                )
        return Committed({log: unlisted(manifest, txn.ledgers[log]) for log, manifest in manifests.items()})
    for log, manifest in manifests.items():
        check_held(manifest)
        if txn.is_kept and (last := _last_of(manifest, txn.app)) is not None:
            if last[0] != txn.query:
                raise TransactionRefused(
                    f"application {txn.app!r} committed version {last[1]} to log {log} as query "
                    f"{last[0] or '(batch)'}; this is query {txn.query or '(batch)'}, which restarts the count. Go on "
                    "with the old checkpoint, or choose another txnAppId: then all rows of this query are appended, "
                    "also those that the old one wrote"
                )
            check_gap(log, txn, last[1])
    opened = {
        log: left
        for log, manifest in manifests.items()
        if (left := [ledger_id for ledger_id in manifest.open_ledgers if ledger_id not in ends])
    }
    if opened:
        return OpenTail(opened)
    return Swap({log: _swapped(manifest, txn, log, ends, now_ms) for log, manifest in manifests.items()})


def check_gap(log: str, txn: Transaction, last: int) -> None:
    """Raise `TransactionRefused` if the log lacks the transaction before this one. `last`: the query's last one there.

    The log may be a mirror that lacks its source's last transactions, or be restored from a backup. The query goes on
    where the source was, so the rows in between would be missing for good.
    """
    if txn.is_consecutive and last + 1 < txn.version:
        lost = f"batch {last + 1}" if last + 2 == txn.version else f"batches {last + 1} to {txn.version - 1}"
        raise TransactionRefused(
            f"query {txn.query} (application {txn.app!r}) commits batch {txn.version} to log {log}, whose last one is "
            f"batch {last}: the log lacks {lost}, perhaps because it was moved or restored. Append their rows first, "
            "as a batch write, or accept that they are missing; then start the query once with onBatchGap=accept"
        )


def _swapped(manifest: Manifest, txn: Transaction, log: str, ends: Mapping[int, LedgerEnd], now_ms: int) -> Manifest:
    changed = appended(manifest, txn.ledgers[log], ends, txn.name, is_replacing=txn.is_replacing, now_ms=now_ms)
    txns = {app: last for app, last in manifest.txns.items() if now_ms - _used_ms(last) < RETENTION_MS}
    if txn.is_kept:
        txns[txn.app] = {"query": txn.query, "version": txn.version, "at": now_ms}
    return replace(changed, txns=txns)


def _knows(manifest: Manifest, txn: Transaction, written: tuple[Written, ...]) -> bool:
    """Report whether a list shows that the transaction was committed, to this log and so to all of its logs."""
    if len(unlisted(manifest, written)) < len(written):
        return True
    last = _last_of(manifest, txn.app) if txn.is_kept else None
    return last is not None and last[0] == txn.query and last[1] >= txn.version


def unlisted(manifest: Manifest, written: tuple[Written, ...]) -> list[int]:
    """Return the ledgers that a list names neither as its own nor as still to be deleted."""
    listed = {*manifest.ledger_ids, *manifest.storages, *manifest.deleting}
    return [ledger.ledger_id for ledger in written if ledger.ledger_id not in listed]


def _last_of(manifest: Manifest, app: str) -> tuple[str, int] | None:
    """Return (query, version) of an application's last transaction."""
    last = manifest.txns.get(app)
    if not isinstance(last, Mapping):
        return None
    return str(last.get("query", "")), int(last.get("version", -1))


def _used_ms(last: Any) -> int:
    """Return when a transaction was committed; 0 if that is unreadable, so that the list drops it."""
    return int(last.get("at", 0)) if isinstance(last, Mapping) else 0


# -- ledgers of transactions -----------------------------------------------------------------------------------------


class Origin(NamedTuple):
    """Writer of ledgers for a log, as in their labels. `attempt`: distinguishes attempts at one partition."""

    app: str
    version: int
    query: str
    partition: int
    attempt: str


def labels_of(origin: Origin, log: str, token: str, now_ms: int) -> Mapping[str, str]:
    """Return the labels for a ledger's record that say where it belongs. `token`: of the log."""
    app, version, query, partition, attempt = origin
    values = (log, token, app, str(version), query, str(partition), attempt, str(now_ms))
    return {f"sink.{name}": value for name, value in zip(LABELS, values, strict=True)}


def label(metadata: LedgerMetadata, name: str) -> str:
    """Return one of `LABELS` in a ledger's record; empty when it has none."""
    return metadata.custom_metadata.get(f"sink.{name}", b"").decode(errors="replace")


def unfitness(
    metadata: LedgerMetadata, txn: Transaction, log: str, written: Written, password: bytes | None = None
) -> str:
    """Return why a ledger must not be appended to a log; empty when it may. It must be closed besides.

    `password`: of the log's last ledger; None: it does not matter, or is unknown.
    """
    if label(metadata, "log") != log or label(metadata, "token") != txn.tokens[log]:
        return f"it was written for log {label(metadata, 'log')!r}, perhaps an earlier one of that name"
    if (label(metadata, "app"), label(metadata, "version")) != (txn.app, str(txn.version)):
        return f"it belongs to transaction {label(metadata, 'app')}:{label(metadata, 'version')}"
    if None not in (password, metadata.password) and password != metadata.password:
        return "its password is not the one of the log's other ledgers: readers could not pass it"
    end = (metadata.last_entry_id, metadata.length)
    if metadata.is_closed and end != (written.last_entry_id, written.length):
        return f"it ends at entry {metadata.last_entry_id}, not at {written.last_entry_id}"
    return ""


class Fate(enum.Enum):
    """Classification of a transaction's ledger by the reaper, which deletes only garbage."""

    LISTED = "listed"
    YOUNG = "young"  # its transaction may still be in progress
    MIGRATED = "migrated"  # copied from another cluster, with the labels it has there; its migration may be in progress
    LEFT_OUT = "left out"  # of a former source: has rows that the log in the other cluster never got
    GARBAGE = "garbage"


def fate(
    manifest: Manifest | None,
    metadata: LedgerMetadata,
    now_ms: int,
    *,
    orphan_grace_ms: int = ORPHAN_GRACE_MS,
    replay_grace_ms: int = REPLAY_GRACE_MS,
) -> Fate:
    """Classify a ledger that was written for the log with this list. `manifest` None: there is no such log.

    A ledger of a committed transaction that is not listed is left over from another attempt. One of a transaction that
    was not committed may still be in use; a query that resumes writes it again, so it is garbage after
    `orphan_grace_ms`. A copy from another cluster belongs to no transaction, despite its labels. A migration may list
    it at any later time, or an operator copied that ledger alone; so it is never garbage, and an operator decides. The
    same holds for rows that only this cluster has, since another one continued the log.
    """
    if manifest is not None and metadata.ledger_id in (*manifest.storages, *manifest.deleting):
        return Fate.LISTED
    if manifest is not None and metadata.ledger_id in manifest.extra.get(LEFT_OUT, ()):
        return Fate.LEFT_OUT
    if MIGRATED_FROM in metadata.custom_metadata:
        return Fate.MIGRATED
    created = label(metadata, "created")
    age_ms = now_ms - (int(created) if created.isascii() and created.isdigit() else 0)
    is_over = False
    if manifest is not None and (last := _last_of(manifest, label(metadata, "app"))) is not None:
        version = label(metadata, "version")
        is_over = last[0] == label(metadata, "query") and version.isdigit() and int(version) <= last[1]
    return Fate.GARBAGE if age_ms >= (replay_grace_ms if is_over else orphan_grace_ms) else Fate.YOUNG
