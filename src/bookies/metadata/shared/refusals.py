"""Checks of versions and the errors of refused operations: the same words in every store."""

from __future__ import annotations

from bookies.errors import (
    CookieExists,
    CookieNotFound,
    LedgerExists,
    LedgerNotFound,
    MetadataError,
    RecordExists,
    RecordNotFound,
    VersionConflict,
)
from bookies.metadata.interface.driver import RecordAt, RecordWrite, Step
from bookies.model import BookieId


def check_version(stored: int, expected: int, *, ledger_id: int | None = None, bookie: str | None = None) -> None:
    """Check the version of a compare-and-swap. Raises `VersionConflict`."""
    if stored != expected:
        message = f"the record has version {stored}, not {expected}: another client changed it"
        raise VersionConflict(message, ledger_id=ledger_id, bookie=bookie)


def taken(ledger_id: int) -> LedgerExists:
    """Return the error for a new ledger whose id an existing ledger has."""
    return LedgerExists(
        "the ledger id is taken: choose another one, or leave the choice to the metadata store", ledger_id=ledger_id
    )


def deleted_before(ledger_id: int) -> LedgerExists:
    """Return the error for a new ledger whose id a deleted ledger had."""
    return LedgerExists(
        "a ledger of this id was deleted, and bookies may still hold its entries, so the id can never be used again: "
        "choose another one, or leave the choice to the metadata store",
        ledger_id=ledger_id,
    )


def half_a_cluster() -> MetadataError:
    """Return the error for creating a cluster in a store with cookies: a new instance id would keep their bookies from
    starting.
    """
    return MetadataError(
        "the metadata store has no instance id, but cookies of bookies. If `bk metadata migrate`, `load` or `nuke` was "
        "interrupted, which `bk metadata check` reports, run it again. Otherwise the instance id was lost: restore it "
        "from a bookie's VERSION file"
    )


def other_cluster(stored: str, wanted: str) -> MetadataError:
    """Return the error for a store that belongs to another cluster."""
    return MetadataError(
        f"the metadata store is that of cluster {stored}, and cannot become {wanted}: name an empty store"
    )


def not_found(ledger_id: int) -> LedgerNotFound:
    """Return the error for a ledger without a record."""
    return LedgerNotFound("no such ledger in the metadata store", ledger_id=ledger_id)


def cookie_exists(bookie: BookieId) -> CookieExists:
    """Return the error for a new cookie of a bookie that has one."""
    return CookieExists("the metadata store has a cookie already", bookie=bookie)


def no_cookie(bookie: BookieId) -> CookieNotFound:
    """Return the error for a bookie without a cookie."""
    return CookieNotFound("no cookie in the metadata store", bookie=bookie)


def record_exists(name: str) -> RecordExists:
    """Return the error for a new record whose name an existing record has."""
    return RecordExists(f"the metadata store has a record {name} already")


def no_record(name: str) -> RecordNotFound:
    """Return the error for a missing record."""
    return RecordNotFound(f"no record {name} in the metadata store")


def check_step(step: Step, stored: int) -> None:
    """Check the version of a transaction's step. `stored`: the present version, 0 for a missing ledger or record.

    Raises as `MetadataDriver.transact`.
    """
    if not isinstance(step, RecordAt | RecordWrite):
        if not stored:
            raise not_found(step.ledger_id)
        check_version(stored, step.version, ledger_id=step.ledger_id)
        return
    if stored and not step.version and isinstance(step, RecordWrite):
        raise record_exists(step.name)
    if step.version and not stored:
        raise no_record(step.name)
    check_version(stored, step.version)
