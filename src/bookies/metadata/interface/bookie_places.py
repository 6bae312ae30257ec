"""The record of bookies' locations and hosts, which remains when a registration ends with its session.

A client that starts while a bookie is down has no registration to read, but needs the rack of the bookie's replicas: to
judge a ledger's placement, and to choose replacements. So every bookie writes its location and host into one named
record when it registers, if the record differs. A registration takes precedence over the record, and a client's own
configuration over both. Readers treat a record that cannot be parsed as empty. Source: pains 55.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from bookies.encoding.documents import parse_json
from bookies.errors import MetadataCorrupt, RecordExists, RecordNotFound, VersionConflict
from bookies.metadata.interface.driver import MetadataDriver
from bookies.model import BookieId

NAME = "bookie-places"  # the record
FORMAT = 1


class BookiePlace(NamedTuple):
    """A bookie's place. `location`: as in the bookie's settings. `host`: the address that it listened on last."""

    location: str
    host: str


async def read_places(driver: MetadataDriver) -> dict[BookieId, BookiePlace]:
    """Return the recorded places; none if the record cannot be parsed. Raises `MetadataError` without an answer."""
    try:
        return (await _read(driver))[0]
    except MetadataCorrupt:
        return {}


async def note_place(driver: MetadataDriver, bookie: BookieId, place: BookiePlace | None) -> bool:
    """Record a bookie's place; None: remove it. False: the record was up to date.

    Raises `MetadataError`, and `MetadataCorrupt` for a record that must not be overwritten.
    """
    while True:
        places, version = await _read(driver)
        if places.get(bookie) == place:
            return False
        changed = {name: at for name, at in (*places.items(), (bookie, place)) if at is not None}
        if place is None:
            del changed[bookie]
        try:
            if version:
                await driver.write_record(NAME, pack(changed), version)
            else:
                await driver.create_record(NAME, pack(changed))
        except (VersionConflict, RecordExists, RecordNotFound):
            continue
        return True


async def _read(driver: MetadataDriver) -> tuple[dict[BookieId, BookiePlace], int]:
    """Return the places and the record's version, 0 without a record. Raises `MetadataCorrupt`."""
    try:
        data, version = await driver.read_record(NAME)
    except RecordNotFound:
        return {}, 0
    return parse(data), version


# -- bytes -------------------------------------------------------------------------------------------------------------


def pack(places: Mapping[BookieId, BookiePlace]) -> bytes:
    """Return the record: one JSON object, `{"format": 1, "bookies": {"bk-1:3181": ["/r1", "10.0.0.1"]}}`."""
    return json.dumps({"format": FORMAT, "bookies": dict(sorted(places.items()))}, ensure_ascii=False).encode("utf-8")


def parse(data: bytes) -> dict[BookieId, BookiePlace]:
    """Read the record. Raises `MetadataCorrupt`."""
    try:
        record = parse_json(data)
        if record["format"] != FORMAT:
            raise MetadataCorrupt(
                f"the places of bookies, the record {NAME}, have format {record['format']}, which a later version of "
                "bookies wrote: use that version"
            )
        return {
            BookieId(bookie): BookiePlace(str(location), str(host))
            for bookie, (location, host) in record["bookies"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetadataCorrupt(f"record {NAME}, with the places of the bookies, cannot be read: {error!r}") from error
