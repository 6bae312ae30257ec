"""Where bookies are that have said so, beside their registrations, which end with their sessions.

A client that starts while a bookie is down has no registration to read, and yet has to know in which rack the bookie's
replicas are: to judge how a ledger is placed, and to choose who takes over. So every bookie writes its location and
its host into one named record when it registers, if the record says something else. A registration counts more than
the record, and what is written down for a client more than both. A record that cannot be read counts as empty for who
reads it. Source: pains 55.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from bookies.errors import MetadataCorrupt, RecordExists, RecordNotFound, VersionConflict
from bookies.metadata.interface.driver import MetadataDriver
from bookies.model import BookieId

NAME = "bookie-places"  # the record
FORMAT = 1


class BookiePlace(NamedTuple):
    """`location`: as in the bookie's settings. `host`: where it listened last."""

    location: str
    host: str


async def read_places(driver: MetadataDriver) -> dict[BookieId, BookiePlace]:
    """Those known; none if the record cannot be understood. Raises `MetadataError` without an answer."""
    try:
        return (await _read(driver))[0]
    except MetadataCorrupt:
        return {}


async def note_place(driver: MetadataDriver, bookie: BookieId, place: BookiePlace | None) -> bool:
    """Write down where a bookie is; None: nowhere, or it is gone. False: the record said so already.

    Raises `MetadataError`, `MetadataCorrupt` for a record that must not be overwritten.
    """
    while True:
        places, version = await _read(driver)
        if places.get(bookie) == place:
            return False
        changed = {each: at for each, at in (*places.items(), (bookie, place)) if at is not None}
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
    """With the version, 0 without a record. Raises `MetadataCorrupt`."""
    try:
        data, version = await driver.read_record(NAME)
    except RecordNotFound:
        return {}, 0
    return parse(data), version


# -- bytes -------------------------------------------------------------------------------------------------------------


def pack(places: Mapping[BookieId, BookiePlace]) -> bytes:
    """One object of JSON: `{"format": 1, "bookies": {"bk-1:3181": ["/r1", "10.0.0.1"]}}`."""
    return json.dumps({"format": FORMAT, "bookies": dict(sorted(places.items()))}, ensure_ascii=False).encode("utf-8")


def parse(data: bytes) -> dict[BookieId, BookiePlace]:
    """Raises `MetadataCorrupt`."""
    try:
        found = json.loads(data)
        if found["format"] != FORMAT:
            raise MetadataCorrupt(f"the places of bookies have format {found['format']}, of a later version of bookies")
        return {
            BookieId(bookie): BookiePlace(str(location), str(host))
            for bookie, (location, host) in found["bookies"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetadataCorrupt(f"the places of bookies, the record {NAME}, cannot be read: {error!r}") from error
