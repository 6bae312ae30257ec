"""Performance of other machines, computed from the measurements of `make bench-scale` on this machine.

    python -m benchmarks.model [FILE]           print the tables, from benchmarks/scale.json or FILE
    python -m benchmarks.model FILE --write     keep FILE as benchmarks/scale.json, and put the tables into the page

The model turns constants into tables and measures nothing. docs/internals/performance.md explains it. Times are in
microseconds, sizes in bytes of payload, rates in entries a second, bandwidths in bytes a second. A figure "of a
replica" counts Qw times for an entry.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import scale
from benchmarks.suite.table import number

MEASURED = pathlib.Path(__file__).with_name("scale.json")
DOCUMENT = pathlib.Path(__file__).parent.parent / "docs" / "internals" / "performance.md"
KIB = 1024
ROLL_SIZE = 256 << 20  # payload bytes after which a log goes on in the next ledger, by default
ROLL_OPERATIONS = 3  # on the metadata store: create the next ledger, list it, close the one before
ROUNDS = 30  # of a fit
OVERLAPS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # that are tried
ADD, READ = "add", "read"
CLIENT_CPU, BOOKIE_CPU = "client CPU", "bookie CPU"
ONE_CLIENT, ONE_BOOKIE = "client CPU, one core each", "bookie CPU, one core each"
JOURNAL, LOG, DISK = "journal device", "entry-log device", "disk"
NETWORK, METADATA = "network", "metadata store"
Cell = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """`entry` + `replica` * Qw + `kib` * Qw * KiB of payload."""

    entry: float = 0.0
    replica: float = 0.0
    kib: float = 0.0

    def at(self, size: float, write_quorum: int) -> float:
        return self.entry + write_quorum * (self.replica + self.kib * size / KIB)


@dataclass(frozen=True, slots=True)
class Constants:
    """Everything that is measured. Each is for an entry, or, where `Line` says so, partly for each replica.

    `client_us`, `bookies_us`: processor time of adds; `client_read_us`, `bookies_read_us`: of reads of 1 KiB in order,
    the second with a part for each bookie that takes turns.
    `client_batch_us`, `bookies_batch_us`: of a batch of one ledger with a single entry, all replicas.
    `journal_bytes`, `log_bytes`, `wire_bytes`: that an add causes. `disk`: of the device that all share here.
    `sync_us`: of one add alone, from the append to its confirmation. `ledgers_per_s`: created and sealed by one client.
    `free_share`: of the processors that clients and bookies can have; the rest was the kernel's, or other people's.
    `bookie_cores`: processors that one bookie can keep busy.
    `overlap`: how near two limits must be until both are felt, see `together`.
    """

    client_us: Line
    bookies_us: Line
    client_read_us: float
    bookies_read_us: Line
    client_batch_us: float
    bookies_batch_us: float
    journal_bytes: Line
    log_bytes: Line
    wire_bytes: Line
    disk: float
    sync_us: float
    ledgers_per_s: float
    free_share: float
    bookie_cores: float
    overlap: float = 4.0
    read_overlap: float = 4.0


@dataclass(frozen=True, slots=True)
class Setup:
    """Machines of a kind, each with so many processors, bookies and client processes.

    `ensemble`: of the one ledger that one client writes; None: clients have so many that all bookies have work.
    `journal`, `log`: bandwidth of a machine's devices for each; with `is_shared` `journal` is all there is for both.
    `network`: of a machine, each way.
    """

    cores: float
    bookies: int
    clients: int
    machines: int = 1
    write_quorum: int = 3
    ensemble: int | None = None
    journal: float = math.inf
    log: float = math.inf
    is_shared: bool = False
    network: float = math.inf


# -- from what was measured to constants -------------------------------------------------------------------------------


def fit(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Coefficients of the columns, none negative, with the smallest sum of relative errors: outliers count little."""
    columns = list(range(len(rows[0])))
    while True:
        weighed = [[row[c] / value for c in columns] for row, value in zip(rows, values, strict=True)]
        found = _least_errors(weighed)
        if min(found) >= 0:
            return [found[columns.index(c)] if c in columns else 0.0 for c in range(len(rows[0]))]
        columns.pop(found.index(min(found)))


def _least_errors(rows: Sequence[Sequence[float]]) -> list[float]:
    """Coefficients that make each row come to 1, by least squares, again and again with less weight on what is off."""
    weights, unknowns, found = [1.0] * len(rows), range(len(rows[0])), [0.0]
    for _ in range(ROUNDS):
        pairs = list(zip(rows, weights, strict=True))
        matrix = [[sum(w * row[i] * row[j] for row, w in pairs) for j in unknowns] for i in unknowns]
        found = _solve(matrix, [sum(w * row[i] for row, w in pairs) for i in unknowns])
        errors = (abs(sum(a * b for a, b in zip(row, found, strict=True)) - 1) for row in rows)
        weights = [1 / max(error, 1e-4) for error in errors]
    return found


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """A system of linear equations, by elimination; an unknown that nothing depends on is 0."""
    count = len(right)
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for column in range(count):
        pivot = max(range(column, count), key=lambda each: abs(rows[each][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        if abs(rows[column][column]) < 1e-12:
            continue
        for other in range(count):
            if other != column:
                factor = rows[other][column] / rows[column][column]
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[column], strict=True)]
    return [rows[i][count] / rows[i][i] if abs(rows[i][i]) >= 1e-12 else 0.0 for i in range(count)]


def quorum_of(cell: Cell) -> int:
    return min(3, int(cell["bookies"]))


def line(cells: Sequence[Cell], value: Callable[[Cell], float], *, has_entry: bool) -> Line:
    """Fitted to cells of several sizes and quorums; without `has_entry` all of it is of replicas."""
    rows = [[1.0 if has_entry else 0.0, float(quorum_of(cell)), quorum_of(cell) * cell["size"] / KIB] for cell in cells]
    return Line(*fit(rows, [max(value(cell), 1e-9) for cell in cells]))


def constants(measured: Mapping[str, Any]) -> Constants:
    """From the document of `benchmarks.scale`. Raises `ValueError` when a part of it is missing."""
    cells = [cell for cell in measured["cells"] if cell["rates"]]
    adds = [cell for cell in cells if cell["case"].startswith("add")]
    reads = [cell for cell in cells if cell["case"].startswith("read")]
    named = {cell["case"]: cell for cell in cells}
    for case in ("one in flight", "a ledger an entry", "create and seal"):
        if case not in named:
            raise ValueError(f"the measurements have no runs of {case!r}: make bench-scale again, without an interrupt")
    if not reads or len({(cell["size"], quorum_of(cell)) for cell in adds}) < 4:
        raise ValueError("the measurements are not the whole grid: make bench-scale again, without an interrupt")
    client_us = line(adds, lambda cell: cell["client_cpu_us"], has_entry=True)
    bookies_us = line(adds, lambda cell: cell["bookies_cpu_us"], has_entry=False)
    single = named["a ledger an entry"]
    found = Constants(
        client_us=client_us,
        bookies_us=bookies_us,
        client_read_us=statistics.median(cell["client_cpu_us"] for cell in reads),
        bookies_read_us=Line(
            *fit([[1.0, float(quorum_of(cell))] for cell in reads], [cell["bookies_cpu_us"] for cell in reads])
        ),
        client_batch_us=max(0.0, single["client_cpu_us"] - client_us.at(single["size"], 3)),
        bookies_batch_us=max(0.0, single["bookies_cpu_us"] - bookies_us.at(single["size"], 3)),
        journal_bytes=line(adds, lambda cell: cell["journal_per_payload"] * cell["size"], has_entry=False),
        log_bytes=line(adds, lambda cell: cell["log_per_payload"] * cell["size"], has_entry=False),
        wire_bytes=line(adds, lambda cell: cell["loopback_per_entry"], has_entry=False),
        disk=1e6 * max(measured["limits"]["disk_mb_s"], max(cell.get("disk_mb_s", 0.0) for cell in adds)),
        sync_us=named["one in flight"]["p50_us"],
        ledgers_per_s=named["create and seal"]["entries_per_s"],
        free_share=1 - max(0.0, min(cell["busy"] - cell["used"] for cell in adds + reads)) / measured["cores"],
        bookie_cores=max(1.0, max(cell["bookie_cores"] for cell in adds + reads)),
    )
    overlap = min(OVERLAPS, key=lambda each: misses(replace(found, overlap=each), measured["cores"], adds))
    read_overlap = min(OVERLAPS, key=lambda each: misses(replace(found, read_overlap=each), measured["cores"], reads))
    return replace(found, overlap=overlap, read_overlap=read_overlap)


# -- from constants to rates -------------------------------------------------------------------------------------------


def limits(
    given: Constants, setup: Setup, size: float, kind: str = ADD, batch: float | None = None
) -> dict[str, float]:
    """What each part alone would allow, entries a second. `batch`: entries of a ledger that go together; None: many."""
    quorum = setup.write_quorum
    client, bookies = _times(given, size, kind, quorum, batch)
    per_bookie = bookies / (setup.bookies * setup.machines)
    if setup.ensemble is not None:
        per_bookie = bookies / setup.ensemble
    free = setup.cores * given.free_share * setup.machines
    clients = setup.clients * setup.machines if setup.ensemble is None else 1
    found = {
        # Everybody runs on the same processors: what takes more of them is named.
        CLIENT_CPU if client > bookies else BOOKIE_CPU: 1e6 * free / (client + bookies),
        ONE_CLIENT: 1e6 * clients / client,
        ONE_BOOKIE: 1e6 * given.bookie_cores / per_bookie,
    }
    # Between machines; what a machine's clients send to its own bookies stays inside.
    remote = 1 - 1 / setup.machines
    if remote:
        wire = given.wire_bytes.at(size, quorum if kind == ADD else 1)
        sent = wire if setup.ensemble is not None else wire / setup.machines
        found[NETWORK] = setup.network / (sent * remote)
    if kind == READ:
        return found
    # One ledger's replicas are on as many machines as its ensemble has bookies, or on all there are.
    devices = min(setup.ensemble or setup.machines, setup.machines)
    journal, log = given.journal_bytes.at(size, quorum), given.log_bytes.at(size, quorum)
    if setup.is_shared:
        found[DISK] = devices * setup.journal / (journal + log)
    else:
        found |= {JOURNAL: devices * setup.journal / journal, LOG: devices * setup.log / log}
    found[METADATA] = given.ledgers_per_s * 2 / ROLL_OPERATIONS * ROLL_SIZE / size
    return found


def _times(given: Constants, size: float, kind: str, quorum: int, batch: float | None) -> tuple[float, float]:
    """Processor time of client and bookies for an entry, microseconds."""
    if kind == READ:
        return given.client_read_us, given.bookies_read_us.at(0, quorum)
    client, bookies = given.client_us.at(size, quorum), given.bookies_us.at(size, quorum)
    if batch is None:
        return client, bookies
    return client + given.client_batch_us / batch, bookies + given.bookies_batch_us / batch


def together(found: Mapping[str, float], overlap: float) -> tuple[float, str]:
    """The rate under all limits at once, and the name of the lowest.

    1/rate**overlap is the sum of 1/limit**overlap: with 1 the parts wait for each other, with 8 the lowest counts.
    """
    lowest = min(found, key=lambda name: found[name])
    total = sum((found[lowest] / value) ** overlap for value in found.values())
    return found[lowest] / total ** (1 / overlap), lowest


def predict(
    given: Constants, setup: Setup, size: float, kind: str = ADD, batch: float | None = None
) -> tuple[float, str]:
    """Entries a second, and what bounds them."""
    return together(limits(given, setup, size, kind, batch), given.overlap if kind == ADD else given.read_overlap)


def of_cell(given: Constants, cores: int, cell: Cell) -> tuple[float, str]:
    """What a cell of the grid should have given."""
    setup = Setup(
        cores, cell["bookies"], cell["clients"], write_quorum=quorum_of(cell), journal=given.disk, is_shared=True
    )
    return predict(given, setup, cell["size"], READ if cell["case"].startswith("read") else ADD)


def misses(given: Constants, cores: int, cells: Sequence[Cell]) -> float:
    """How far predictions are off: the mean of the logarithms."""
    return statistics.fmean(abs(math.log(of_cell(given, cores, cell)[0] / cell["entries_per_s"])) for cell in cells)


# -- tables ------------------------------------------------------------------------------------------------------------

SIZES = {"100 B": 100, "1 KiB": 1024, "16 KiB": 16384}
NVME = 2e9  # bytes a second that one device writes
WIRE = 25e9 / 8  # bytes a second of a machine's network, each way
TOLERANCE = 0.25
ONE, FOUR = "one NVMe", "four NVMe"
DEVICES: dict[str, dict[str, Any]] = {
    ONE: {"journal": NVME, "is_shared": True},
    FOUR: {"journal": 2 * NVME, "log": 2 * NVME},
}


def layouts(cores: int) -> list[int]:
    """Bookies on so many processors: one for each, and one for two; never less than the three that Qw needs."""
    return sorted({max(3, cores), max(3, cores // 2)}, reverse=True)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join(f"| {' | '.join(each)} |" for each in lines)


def rounded(rate: float) -> str:
    """Two digits: more would promise too much."""
    step = 10 ** max(0, math.floor(math.log10(rate)) - 1)
    return f"{round(rate / step) * step:,.0f}"


def of_constants(given: Constants, measured: Mapping[str, Any]) -> str:
    def parts(each: Line, unit: str) -> str:
        entry = f"{number(each.entry)} {unit}, and " if each.entry else ""
        return f"{entry}{number(each.replica)} {unit} and {number(each.kib)} {unit} a KiB for each replica"

    sync = measured["limits"]["sync_us"]
    rows = [
        ["client, processor time of an add", parts(given.client_us, "us"), "fitted to the adds of the grid"],
        ["bookies, the same", parts(given.bookies_us, "us"), "the same"],
        ["client, processor time of a read of 1 KiB", f"{number(given.client_read_us)} us", "median of the reads"],
        ["bookies, the same", _read(given.bookies_read_us), "fitted to the reads"],
        ["client, a batch with one entry", f"{number(given.client_batch_us)} us", "1,000 ledgers, one in flight each"],
        ["bookies, the same, all replicas", f"{number(given.bookies_batch_us)} us", "the same"],
        ["to the journal's device", parts(given.journal_bytes, "B"), "fitted: bytes to files less the next line"],
        ["to the entry log's device", parts(given.log_bytes, "B"), "fitted: growth of the ledger directories"],
        ["through the network", parts(given.wire_bytes, "B"), "fitted: bytes on loopback"],
        ["disk here", f"{given.disk / 1e6:,.0f} MB/s", "the most that three writers of 1 MiB, or a cell, got"],
        ["write of 4 KiB and its sync, three writers", f"{number(sync['3'][0] / 1000)} ms", "limits, median"],
        ["one add alone, 1 KiB", f"{number(given.sync_us / 1000)} ms", "one in flight, median"],
        ["ledgers created and sealed", f"{given.ledgers_per_s:,.0f} a second", "one client, 16 at a time"],
        ["processors that clients and bookies can have", f"{100 * given.free_share:.0f} %", "most of any cell"],
        ["processors that one bookie keeps busy", number(given.bookie_cores), "the busiest of the grid, at least 1"],
        ["overlap of adds, of reads", f"{given.overlap:g}, {given.read_overlap:g}", "fitted to entries/s of the grid"],
    ]
    return table(["constant", "value", "measured by `make bench-scale`"], rows).replace("---:", "---")


def _read(each: Line) -> str:
    return f"{number(each.entry)} us, and {number(each.replica)} us for each bookie that the ledger is on, up to Qw"


def compared(given: Constants, measured: Mapping[str, Any]) -> str:
    """What the model says of each cell of the grid, over what was measured."""
    cells = [cell for cell in measured["cells"] if cell["rates"] and cell["case"].startswith(("add", "read"))]
    counts = sorted({cell["clients"] for cell in cells})
    ratios: dict[tuple[str, int], dict[int, tuple[float, str]]] = {}
    for cell in cells:
        rate, _ = of_cell(given, measured["cores"], cell)
        ratio = rate / cell["entries_per_s"]
        row = ratios.setdefault((cell["case"], cell["bookies"]), {})
        row[cell["clients"]] = ratio, f"{rounded(rate)} ({ratio:.2f})"
    heads = ["model, entries/s (over measured)", "bookies", *(f"{each} client{'s' * (each > 1)}" for each in counts)]
    rows = [[case, f"{n}", *(row[c][1] if c in row else "-" for c in counts)] for (case, n), row in ratios.items()]
    every = [ratio for row in ratios.values() for ratio, _ in row.values()]
    near = sum(1 - TOLERANCE <= each <= 1 + TOLERANCE for each in every)
    middle = statistics.median(abs(each - 1) for each in every)
    said = f"{near} of {len(every)} cells are within {100 * TOLERANCE:.0f} %; the median is {100 * middle:.0f} % off."
    return f"{table(heads, rows)}\n\n{said}"


def needed(given: Constants) -> str:
    """One machine whose devices and network never limit, and what those would have to be."""
    rows = []
    for cores in (2, 8, 32, 128):
        for bookies in layouts(cores):
            for name, size in SIZES.items():
                rate, cause = predict(given, Setup(cores, bookies, max(4, cores)), size)
                parts = given.journal_bytes, given.log_bytes, given.wire_bytes
                gb = [f"{each.at(size, 3) * rate / 1e9:.2f}" for each in parts]
                rows.append([f"{cores}", f"{bookies}", name, rounded(rate), cause, *gb])
    heads = ["processors", "bookies", "add", "entries/s", "bottleneck"]
    return table([*heads, "journal, GB/s", "entry log, GB/s", "network if clients were elsewhere, GB/s"], rows)


def on_devices(given: Constants) -> str:
    """The same with devices, one bookie a processor, and reads."""
    rows = []
    for cores in (2, 8, 32, 128):
        for name, devices in DEVICES.items():
            setup = Setup(cores, layouts(cores)[0], max(4, cores), **devices)
            told = [predict(given, setup, size) for size in SIZES.values()] + [predict(given, setup, 1024, READ)]
            rows.append([f"{cores}", name, *(f"{rounded(rate)} ({cause})" for rate, cause in told)])
    return table(["processors", "devices", *(f"add {each}" for each in SIZES), "read 1 KiB"], rows)


def of_cluster(given: Constants) -> str:
    """Ten machines of 32 processors."""
    rows = []
    for name, devices in DEVICES.items():
        for what, ensemble in (("many ledgers, E3 or E10", None), ("one ledger, E3", 3), ("one ledger, E10", 10)):
            setup = Setup(32, 32, 32, machines=10, ensemble=ensemble, network=WIRE, **devices)
            told = [predict(given, setup, size) for size in SIZES.values()]
            rows.append([what, name, *(f"{rounded(rate)} ({cause})" for rate, cause in told)])
    return table(["what is written, Qw3/Qa2", "devices of each", *(f"add {each}" for each in SIZES)], rows)


def of_batches(given: Constants) -> str:
    """Entries of one ledger that go together, 100 B, four devices."""
    rows = []
    setups = [
        Setup(cores, layouts(cores)[0], max(4, cores), machines, network=WIRE, **DEVICES[FOUR])
        for cores, machines in ((2, 1), (32, 1), (32, 10))
    ]
    for batch in (1, 10, 100):
        told = [predict(given, setup, 100, batch=batch) for setup in setups]
        rows.append([f"{batch}", *(f"{rounded(rate)} ({cause})" for rate, cause in told)])
    return table(["entries of a ledger in a batch", "2 processors", "32", "ten machines of 32"], rows)


def tables(measured: Mapping[str, Any]) -> dict[str, str]:
    """By the name of their place in docs/internals/performance.md."""
    given = constants(measured)
    return {
        "measured": scale.rates(measured),
        "costs": scale.costs(measured),
        "constants": of_constants(given, measured),
        "compared": compared(given, measured),
        "needed": needed(given),
        "devices": on_devices(given),
        "cluster": of_cluster(given),
        "batches": of_batches(given),
    }


def put(text: str, found: Mapping[str, str]) -> str:
    """The document with these tables in it. Raises `ValueError` when it has no place for one."""
    for name, content in found.items():
        begin, end = f"<!-- {name}: python -m benchmarks.model FILE --write -->\n", f"<!-- end of {name} -->"
        before, found_begin, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not found_begin or not found_end:
            place = f"{begin.strip()} ... {end}"
            raise ValueError(f"docs/internals/performance.md has no place for the table {name!r}: {place}")
        text = f"{before}{begin}{content}\n{end}{after}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=pathlib.Path, default=MEASURED, help="of `make bench-scale`'s --json")
    parser.add_argument(
        "--write", action="store_true", help="write into docs/internals/performance.md, and keep the measurements"
    )
    arguments = parser.parse_args()
    try:
        text = arguments.file.read_text()
        found = tables(json.loads(text))
    except (OSError, ValueError) as error:
        parser.error(f"{arguments.file}: {error}")
    for name, content in found.items():
        print(f"{name}\n\n{content}\n")
    if arguments.write:
        DOCUMENT.write_text(put(DOCUMENT.read_text(), found))
        MEASURED.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
