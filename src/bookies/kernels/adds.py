"""Adds that arrived together: one value from the decoder of a connection to the write cache."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate

from msgspec import Struct

from bookies.kernels._python import Records

COLUMNS = 6  # of a table of stretches

Row = tuple[int, int, int, int, int, int]


class Adds(Struct, frozen=True):
    """Entries of any number of ledgers, in the order of their arrival, with their records in one buffer.

    `table` has six int64 numbers for each stretch, which is a sequence of adds of one ledger: ledger id, index after
    the last entry, greatest last add confirmed (LAC) of the bodies, first entry id, step between entry ids, greatest
    entry id. Step 0: the ids are not equally spaced, and stand in `entry_ids`. One ledger is one stretch; ten thousand
    ledgers in turn are sixty thousand numbers and no objects.

    `entry_ids`: one for each record; a `range` only if there is one stretch, else an array of int64.
    """

    table: array[int]
    entry_ids: Sequence[int]
    records: Records

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.entry_ids)

    @property
    def stretch_count(self) -> int:
        return len(self.table) // COLUMNS

    @property
    def first_ledger_id(self) -> int:
        return self.table[0]

    @property
    def ledger_ids(self) -> array[int]:
        """Return the ledger id of each stretch."""
        return self.table[::COLUMNS]

    @property
    def lacs(self) -> array[int]:
        """Return the greatest LAC of each stretch."""
        return self.table[2::COLUMNS]

    @property
    def greatest_ids(self) -> array[int]:
        """Return the greatest entry id of each stretch."""
        return self.table[5::COLUMNS]

    def stretch_ids(self, number: int) -> tuple[int, Sequence[int]]:
        """Return (ledger id, entry ids) of one stretch."""
        ledger_id, stop, _, first, step, _ = self.table[number * COLUMNS : (number + 1) * COLUMNS]
        start = self.table[(number - 1) * COLUMNS + 1] if number else 0
        ids = range(first, first + step * (stop - start), step) if step else self.entry_ids[start:stop]
        return ledger_id, ids

    def rows(self) -> Iterator[Row]:
        """Yield the numbers of each stretch: see `table`."""
        numbers = iter(self.table)
        return zip(numbers, numbers, numbers, numbers, numbers, numbers, strict=True)

    def stretches(self) -> Iterator[tuple[int, Sequence[int], Records]]:
        """Yield (ledger id, entry ids, records) of each stretch. The records share one buffer."""
        if len(self.table) == COLUMNS:
            yield self.table[0], self.entry_ids, self.records
            return
        start = 0
        for ledger_id, stop, _, first, step, _ in self.rows():
            ids = range(first, first + step * (stop - start), step) if step else self.entry_ids[start:stop]
            yield ledger_id, ids, self.records.slice(start, stop)
            start = stop

    def parts(self) -> Iterator[Adds]:
        """Yield each stretch separately, in a buffer of its own."""
        for number in range(self.stretch_count):
            yield self.picked((number,))

    def picked(self, numbers: Sequence[int]) -> Adds:
        """Return the stretches with these numbers, in a buffer of their own; all of them: this value itself."""
        if len(numbers) == self.stretch_count:
            return self
        table, starts, data = array("q"), self.records.starts, self.records.data
        pieces: list[bytes] = []
        entry_ids = array("q")
        ends = array("q", [0])
        for number in numbers:
            row = self.table[number * COLUMNS : (number + 1) * COLUMNS]
            start = self.table[(number - 1) * COLUMNS + 1] if number else 0
            stop = row[1]
            pieces.append(data[starts[start] : starts[stop]])
            entry_ids.extend(self.entry_ids[start:stop])
            shift = ends[-1] - starts[start]
            ends.extend([at + shift for at in starts[start + 1 : stop + 1]])
            row[1] = len(entry_ids)
            table.extend(row)
        records = Records(b"".join(pieces), ends)
        if len(numbers) == 1 and table[4]:
            return Adds(table, range(table[3], table[3] + table[4] * table[1], table[4]), records)
        return Adds(table, entry_ids, records)

    @staticmethod
    def of(ledger_id: int, entry_ids: Sequence[int], records: Records, last_add_confirmed: int) -> Adds:
        """Return entries of one ledger. `last_add_confirmed`: the greatest LAC in the bodies."""
        return Adds(*table_of(ledger_id, entry_ids, last_add_confirmed), records)

    @staticmethod
    def of_many(entries: Sequence[tuple[int, int, int]], bodies: Sequence[bytes]) -> Adds:
        """Return entries of many ledgers: (ledger id, entry id, LAC) and body of each, each a stretch of its own."""
        table = array("q")
        for index, (ledger_id, entry_id, lac) in enumerate(entries, 1):
            table.extend((ledger_id, index, lac, entry_id, 1, entry_id))
        ends = array("q", accumulate([4 + len(body) for body in bodies], initial=0))
        return Adds(table, array("q", [entry_id for _, entry_id, _ in entries]), Records(Records.of(bodies).data, ends))


def table_of(
    ledger_id: int, entry_ids: Sequence[int], last_add_confirmed: int = -1
) -> tuple[array[int], Sequence[int]]:
    """Return the table of one stretch, and its entry ids as `Adds` has them."""
    count, first, greatest = len(entry_ids), entry_ids[0], max(entry_ids[0], entry_ids[-1])
    if isinstance(entry_ids, range):
        return array("q", (ledger_id, count, last_add_confirmed, first, entry_ids.step, greatest)), entry_ids
    ids = array("q", entry_ids)
    return array("q", (ledger_id, count, last_add_confirmed, first, 0, max(ids))), ids
