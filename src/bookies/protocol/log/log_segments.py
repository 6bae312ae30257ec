"""Long lists of ledgers: the older extents of a log in separate records, so that the log's record stays small.

The log's record is the *head*: it holds the newest extents, and names the *segments* that hold the others, in order.
In memory a list is whole; this module only decides how to store it. Extents in a segment are closed and do not change,
except that a truncation removes extents from the front of the list.

* A segment is written before the head that names it, and never rewritten. Its name contains a digest of its content, so
  a segment that exists already has the same content. The swap of the head is conditional on its existence.
* When the head has become too long, its older extents move to a segment, together with those of the last segment while
  that is short. A truncation that leaves part of a segment replaces it by one with that part.
* A segment that the head no longer names is garbage. It is emptied, on the condition that the head still does not name
  it, and then deleted. A process that has just created it for a swap finds it changed, and creates it again. So no head
  ever names a deleted segment. A process that crashes in between leaves garbage for the next sweep.

Source: spark 4.2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from msgspec.structs import replace

from bookies.encoding.documents import parse_json
from bookies.errors import MetadataCorrupt
from bookies.protocol.log.log_model import (
    OPEN_MAX,
    Extent,
    Manifest,
    Segment,
    pack_extents,
    pack_manifest,
    parse_extents,
)

SEGMENTS = "log-segments/"  # prefix of the names of their records
HEAD_EXTENTS_MAX = 384  # about 40 KiB of JSON; a longer head gives up its older extents
HEAD_EXTENTS_KEPT = 128
SEGMENT_EXTENTS_MAX = 4096  # about 450 KiB of JSON, half of what a store accepts


class Stored(NamedTuple):
    """Plan for storing a list.

    manifest: the whole list, naming its future segments.
    head: the log's record.
    new: segments that have to be written first, name -> (content, its extents).
    dropped: names of the segments that the head no longer names.
    """

    manifest: Manifest
    head: bytes
    new: Mapping[str, tuple[bytes, tuple[Extent, ...]]]
    dropped: Sequence[str]


def stored(log: str, manifest: Manifest) -> Stored:
    """Decide how to store a list that was read, and then changed."""
    kept: list[tuple[Segment | None, tuple[Extent, ...]]] = []
    dropped: list[str] = []
    stop = 0
    for segment in manifest.segments:
        start = stop
        while stop < len(manifest.extents) and manifest.extents[stop].seq <= segment.last_seq:
            stop += 1
        part = manifest.extents[start:stop]
        if len(part) == segment.extent_count and part[0].first == segment.first:
            kept.append((segment, part))
        elif part:
            kept.append((None, part))
        if not kept or kept[-1][0] != segment:
            dropped.append(segment.name)
    head = manifest.extents[stop:]
    if len(head) > HEAD_EXTENTS_MAX:
        moved, head = head[:-HEAD_EXTENTS_KEPT], head[-HEAD_EXTENTS_KEPT:]
        if kept and len(kept[-1][1]) < SEGMENT_EXTENTS_MAX:
            short, part = kept.pop()
            moved = (*part, *moved)
            if short is not None:
                dropped.append(short.name)
        for start in range(0, len(moved), SEGMENT_EXTENTS_MAX):
            kept.append((None, moved[start : start + SEGMENT_EXTENTS_MAX]))
    segments: list[Segment] = []
    new: dict[str, tuple[bytes, tuple[Extent, ...]]] = {}
    for stored_segment, part in kept:
        if stored_segment is None:
            stored_segment, content = _new_segment(log, manifest.token, part)
            new[stored_segment.name] = (content, part)
        segments.append(stored_segment)
    whole = replace(manifest, segments=tuple(segments))
    return Stored(whole, pack_manifest(replace(whole, extents=head)), new, dropped)


def _new_segment(log: str, token: str, extents: tuple[Extent, ...]) -> tuple[Segment, bytes]:
    assert all(extent.last is not None for extent in extents), "a ledger that may be open in a segment"
    content = json.dumps({"log": log, "token": token, "extents": pack_extents(extents)}, separators=(",", ":")).encode()
    first, last = extents[0], extents[-1]
    name = f"{SEGMENTS}{log}/{first.seq}-{last.seq}-{sha256(content).hexdigest()[:16]}"
    rows, size = sum(extent.rows or 0 for extent in extents), sum(extent.bytes or 0 for extent in extents)
    return Segment(name, first.seq, last.seq, len(extents), first.first, rows, size), content


def parse_segment(name: str, content: bytes) -> tuple[Extent, ...]:
    """Return the extents of a segment. Raises `MetadataCorrupt`."""
    try:
        return parse_extents(parse_json(content)["extents"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetadataCorrupt(f"segment {name} of a log cannot be read: {error!r}") from error


def joined(head: Manifest, extents: Mapping[str, tuple[Extent, ...]]) -> Manifest:
    """Return the whole list. `extents`: those of its segments, by name. Raises `MetadataCorrupt`."""
    if not head.segments:
        return head
    whole: list[Extent] = []
    for segment in head.segments:
        part = extents[segment.name]
        if (len(part), part[0].seq, part[-1].seq) != (segment.extent_count, segment.first_seq, segment.last_seq):
            raise MetadataCorrupt(f"segment {segment.name} of a log does not match the log's record")
        whole += part
    return replace(head, extents=(*whole, *head.extents))


assert HEAD_EXTENTS_KEPT >= OPEN_MAX
