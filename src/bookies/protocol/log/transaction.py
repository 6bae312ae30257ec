"""Ledgers that are written first and put into logs later, all at once: what may be done at each moment, and by whom.

A transaction has a name, (application, version): its batch. Tasks write ledgers of their own, close them, and report
them. A *committer* puts all of them at the end of their logs with one conditional write: the records of the logs have
the versions that were read, and so have those of the ledgers. Who deletes ledgers of a transaction, an *abort* or the
*reaper*, does it with one conditional write too: the log has the version at which it did not list them. So a list
never names a ledger that was deleted, whatever is late, lost or repeated:

* a swap that lands after an abort has read the list makes the abort's condition false, and it reads again;
* a deletion that lands after a committer has checked the ledgers makes its condition false, and it is refused.

A committer that does not know what became of its swap reads again. Its ledgers are in the list, or the list names its
transaction as the last of its application, or a later one: committed. Otherwise it never was, at this version of the
list, and it is tried again.

The list keeps the last transaction of each application (`txns`). That makes a repetition with new ledgers a no-op:
the new ledgers are deleted. `query` tells the runs of one application apart: a stream that begins anew counts from 0
again, and would be passed over silently; so it is refused.

Source: spark 4.2, 4.3, 4.5.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bookies.errors import LogNotFound, TransactionRefused
from bookies.model import LedgerMetadata
from bookies.protocol.log.log_model import MIGRATED_FROM, LedgerEnd, Manifest, Written, appended, check_held

RETENTION_MS = 30 * 24 * 3600 * 1000  # since an application's last transaction; then the list forgets it
REPLAY_GRACE_MS = 10 * 60 * 1000  # a repetition of a committed transaction may be writing its ledgers just now
ORPHAN_GRACE_MS = 24 * 3600 * 1000  # a transaction nobody knows of may be under way for so long
LABELS = ("log", "token", "app", "version", "query", "partition", "attempt", "created")


@dataclass(frozen=True, slots=True)
class Transaction:
    """`ledgers`: log -> what comes to its end, in this order. `version`: of one application they only grow.

    `tokens`: log -> its token when the ledgers were written, so that they get into no later log of that name.
    `query`: whoever counts the versions, "" for a person. `is_kept`: note it in `txns`; otherwise only its ledgers
    tell that it was committed, and `app` must be unique. `is_replacing`: the logs hold nothing else afterwards.
    """

    app: str
    version: int
    query: str
    ledgers: Mapping[str, tuple[Written, ...]]
    tokens: Mapping[str, str]
    is_kept: bool = True
    is_replacing: bool = False

    @property
    def name(self) -> str:
        return f"{self.app}:{self.version}"

    @property
    def ledger_ids(self) -> list[int]:
        return [each.ledger_id for written in self.ledgers.values() for each in written]


class Committed(NamedTuple):
    """It was committed before. `unlisted`: log -> its ledgers that no list names, to be deleted."""

    unlisted: Mapping[str, list[int]]


class OpenTail(NamedTuple):
    """Ledgers at the end of logs have to be ended first. `ledgers`: log -> the older first."""

    ledgers: Mapping[str, list[int]]


class Swap(NamedTuple):
    """Write these lists, if the lists that were read, and all ledgers, still have their versions."""

    manifests: Mapping[str, Manifest]


def decide(
    found: Mapping[str, Manifest], txn: Transaction, ends: Mapping[int, LedgerEnd], now_ms: int
) -> Committed | OpenTail | Swap:
    """What a committer does next. `found`: the lists of the transaction's logs. `ends`: of ledgers that were ended.

    Raises `TransactionRefused` (the application's last transaction is another query's), `LogNotFound`, `LogFenced`
    (nobody may append to the log).
    """
    for log, manifest in found.items():
        if manifest.is_deleting:
            raise LogNotFound(f"log {log} is being deleted")
    if any(_knows(manifest, txn, txn.ledgers[log]) for log, manifest in found.items()):
        return Committed({log: unlisted(manifest, txn.ledgers[log]) for log, manifest in found.items()})
    for log, manifest in found.items():
        check_held(manifest)
        if txn.is_kept and (last := _last_of(manifest, txn.app)) is not None and last[0] != txn.query:
            raise TransactionRefused(
                f"application {txn.app!r} committed version {last[1]} to log {log} as query {last[0] or '(batch)'}; "
                f"this is query {txn.query or '(batch)'}, which counts anew. Go on with the old checkpoint, or choose "
                "another txnAppId: then everything this query reads is appended, whatever the old one has appended"
            )
    opened = {
        log: left
        for log, manifest in found.items()
        if (left := [each for each in manifest.open_ledgers if each not in ends])
    }
    if opened:
        return OpenTail(opened)
    return Swap({log: _swapped(manifest, txn, log, ends, now_ms) for log, manifest in found.items()})


def _swapped(manifest: Manifest, txn: Transaction, log: str, ends: Mapping[int, LedgerEnd], now_ms: int) -> Manifest:
    changed = appended(manifest, txn.ledgers[log], ends, txn.name, is_replacing=txn.is_replacing)
    txns = {app: last for app, last in manifest.txns.items() if now_ms - _used_ms(last) < RETENTION_MS}
    if txn.is_kept:
        txns[txn.app] = {"query": txn.query, "version": txn.version, "at": now_ms}
    return replace(changed, txns=txns)


def _knows(manifest: Manifest, txn: Transaction, written: tuple[Written, ...]) -> bool:
    """Whether a list says that the transaction was committed, to this log and so to all of its logs."""
    if len(unlisted(manifest, written)) < len(written):
        return True
    last = _last_of(manifest, txn.app) if txn.is_kept else None
    return last is not None and last[0] == txn.query and last[1] >= txn.version


def unlisted(manifest: Manifest, written: tuple[Written, ...]) -> list[int]:
    """Those ledgers that a list does not name, neither as its own nor as still to be deleted."""
    listed = {*manifest.ledger_ids, *manifest.deleting}
    return [each.ledger_id for each in written if each.ledger_id not in listed]


def _last_of(manifest: Manifest, app: str) -> tuple[str, int] | None:
    """(query, version) of an application's last transaction."""
    last = manifest.txns.get(app)
    if not isinstance(last, Mapping):
        return None
    return str(last.get("query", "")), int(last.get("version", -1))


def _used_ms(last: Any) -> int:
    """When a transaction was committed. What cannot be read was never used, and is forgotten."""
    return int(last.get("at", 0)) if isinstance(last, Mapping) else 0


# -- ledgers of transactions -----------------------------------------------------------------------------------------


class Origin(NamedTuple):
    """Who writes ledgers for a log, as their labels say. `attempt`: tells tries at one partition apart."""

    app: str
    version: int
    query: str
    partition: int
    attempt: str


def labels_of(origin: Origin, log: str, token: str, now_ms: int) -> Mapping[str, str]:
    """What the record of a ledger says of where it belongs. `token`: of the log."""
    app, version, query, partition, attempt = origin
    values = (log, token, app, str(version), query, str(partition), attempt, str(now_ms))
    return {f"sink.{name}": value for name, value in zip(LABELS, values, strict=True)}


def label(metadata: LedgerMetadata, name: str) -> str:
    """One of `LABELS` in a ledger's record; empty when it has none."""
    return metadata.custom_metadata.get(f"sink.{name}", b"").decode(errors="replace")


def unfitness(metadata: LedgerMetadata, txn: Transaction, log: str, written: Written) -> str:
    """Why a ledger must not be put into a log; empty when it may be. It has to be closed besides."""
    if label(metadata, "log") != log or label(metadata, "token") != txn.tokens[log]:
        return f"it was written for log {label(metadata, 'log')!r}, perhaps an earlier one of that name"
    if (label(metadata, "app"), label(metadata, "version")) != (txn.app, str(txn.version)):
        return f"it belongs to transaction {label(metadata, 'app')}:{label(metadata, 'version')}"
    end = (metadata.last_entry_id, metadata.length)
    if metadata.is_closed and end != (written.last_entry_id, written.length):
        return f"it ends at entry {metadata.last_entry_id}, not at {written.last_entry_id}"
    return ""


class Fate(enum.Enum):
    """What the reaper does with a ledger of a transaction."""

    LISTED = "listed"
    YOUNG = "young"  # its transaction may still be under way
    MIGRATED = "migrated"  # copied from another cluster, with the labels it has there: its migration may be under way
    GARBAGE = "garbage"


def fate(
    manifest: Manifest | None,
    metadata: LedgerMetadata,
    now_ms: int,
    *,
    orphan_grace_ms: int = ORPHAN_GRACE_MS,
    replay_grace_ms: int = REPLAY_GRACE_MS,
) -> Fate:
    """Of a ledger that was written for the log with this list; None: there is no such log.

    A ledger that is not listed, of a transaction that was committed, is left from another attempt at it. Of one that
    was not, nothing is known; a query that resumes writes it again, so after `orphan_grace_ms` it is garbage. A copy
    from another cluster is no transaction's, whatever its labels say: a migration lists it, how much later nobody
    knows, or somebody wanted that ledger alone; so it is never garbage, and a person decides.
    """
    if manifest is not None and metadata.ledger_id in (*manifest.ledger_ids, *manifest.deleting):
        return Fate.LISTED
    if MIGRATED_FROM in metadata.custom_metadata:
        return Fate.MIGRATED
    created = label(metadata, "created")
    age_ms = now_ms - (int(created) if created.isascii() and created.isdigit() else 0)
    is_over = False
    if manifest is not None and (last := _last_of(manifest, label(metadata, "app"))) is not None:
        version = label(metadata, "version")
        is_over = last[0] == label(metadata, "query") and version.isdigit() and int(version) <= last[1]
    return Fate.GARBAGE if age_ms >= (replay_grace_ms if is_over else orphan_grace_ms) else Fate.YOUNG
