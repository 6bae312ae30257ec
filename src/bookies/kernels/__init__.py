"""Batch functions over byte buffers, and the choice of their implementation.

`_python.py` is the definition of correct; `_native` (Cython, optional) is its compiled twin. `BOOKIES_KERNELS=python`
or `native` forces one and fails if it is absent. Code outside this package does not depend on the choice.

`Records` is the unit of the data path: entry bodies in the framing `uint32 length | body` that a journal group, an
entry log and a batch-read response share, so an entry is framed once and never copied. `Adds` are records with a table
of the ledgers and entries that they belong to.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bookies.kernels._python import Records
from bookies.kernels.adds import Adds, table_of

_choice = os.environ.get("BOOKIES_KERNELS", "")
if _choice not in ("", "python", "native"):
    raise ImportError(f"BOOKIES_KERNELS={_choice!r}: expected python or native")

NATIVE = False
if _choice != "python":
    try:
        import bookies.kernels._native as _implementation

        NATIVE = True
    except ImportError:
        if _choice == "native":
            raise
if not NATIVE:
    from bookies.kernels import _python as _implementation
    from bookies.kernels import dlog_entries as _entries
    from bookies.kernels import record_sets as _sets
else:
    _entries = _sets = _implementation

if TYPE_CHECKING:
    from bookies.kernels._python import Frame, SortedEntries, Steps, entries
    from bookies.kernels.dlog_entries import EntryBuilder, SlotAppend
    from bookies.kernels.record_sets import SetBuilder
else:
    Frame = _implementation.Frame
    SortedEntries = _implementation.SortedEntries
    Steps = _implementation.Steps
    entries = _implementation.entries
    EntryBuilder = _entries.EntryBuilder
    SetBuilder = _sets.SetBuilder
    SlotAppend = _entries.SlotAppend
crc32c = _implementation.crc32c
scan_frames = _implementation.scan_frames
scan_records = _implementation.scan_records
gather_adds = _implementation.gather_adds
find_ledger = _implementation.find_ledger
pack_add_frames = _implementation.pack_add_frames
pack_answers = _implementation.pack_answers
scan_add_responses = _implementation.scan_add_responses
verify_records = _implementation.verify_records
pack_locations = _implementation.pack_locations
cut_runs = _implementation.cut_runs
greatest_lac = _implementation.greatest_lac
gather_payloads = _implementation.gather_payloads
digest = _implementation.digest
offsets_of = _sets.offsets_of
cut_column = _sets.cut_column
cut_records = _entries.cut_records
placed = _entries.placed

__all__ = [
    "NATIVE",
    "Adds",
    "EntryBuilder",
    "Frame",
    "SortedEntries",
    "Records",
    "SetBuilder",
    "SlotAppend",
    "Steps",
    "crc32c",
    "cut_column",
    "cut_records",
    "cut_runs",
    "digest",
    "entries",
    "find_ledger",
    "gather_adds",
    "gather_payloads",
    "greatest_lac",
    "offsets_of",
    "pack_add_frames",
    "pack_answers",
    "pack_locations",
    "placed",
    "scan_add_responses",
    "scan_frames",
    "scan_records",
    "table_of",
    "verify_records",
]
