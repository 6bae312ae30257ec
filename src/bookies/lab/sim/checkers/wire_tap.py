"""Wire tap: decodes the messages between clients and bookies and checks the promises that a message can break.

The tap decodes what either side of a connection writes, at that moment, and does not change it. It derives a client's
role from its name, and takes the committed records from the store and the contents and fences of bookies from the
witness:

    I-5    a recovery reads the tail only when no write set can confirm further entries to the writer
    I-6    a bookie that answered a fencing read with `NO_ENTRY` never acknowledges that entry to the writer
    I-8    the writer sends an entry only to bookies that a committed record lists for it
    I-9    an answer counts for the position its entry was sent to, and late failures (`checkers/ack_counting.py`)
    I-10   recovery reads go to the bookies of the record that announced the recovery
    I-13   a last add confirmed in a message is true: entries up to it are on ack quorums, or before the ledger's end
    I-15   the client that closes a ledger knows its length, unless it cannot read the last entry
           (`checkers/ledger_length.py`)
    I-18   no replicator replaces a bookie in a fragment of an open ledger that is not known to be finished
    I-28   a bookie answers a fencing request only after it has fenced the ledger
    I-30   readers neither add nor fence nor announce an end; recoveries send no ordinary adds; no client fences a
           ledger without a committed recovery
    I-32   which bookies answered `NO_ENTRY` to which client, for the readers' `EntryNotFound`
    memory no client holds more than its limit (`checkers/memory_limit.py`)

Source: client-protocol 8.1, 8.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from bookies.errors import RemoteProtocolError, Status
from bookies.kernels import Adds
from bookies.lab.sim.checkers.ack_counting import AckChecker
from bookies.lab.sim.checkers.ledger_length import LedgerLengthChecker
from bookies.lab.sim.checkers.memory_limit import MemoryLimitChecker
from bookies.lab.sim.world.network import SimNetwork, SimTransport
from bookies.lab.sim.world.sim_metadata import Commit, SimStore, write_set_of
from bookies.lab.sim.world.witness import Witness
from bookies.model import BookieId, LedgerMetadata, LedgerState, fragments_of
from bookies.protocol.quorums import write_set
from bookies.runtime.ports import Buffer
from bookies.wire.client import ResponseDecoder
from bookies.wire.messages import (
    AddRequest,
    AddResponses,
    BatchReadRequest,
    BatchReadResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    WriteLacRequest,
)
from bookies.wire.server import RequestDecoder

T = TypeVar("T")
FRAME_SIZE_MAX = 1 << 24
ROLES = ("writer", "recoverer", "reader", "checker")
RECOVERING = ("recoverer", "checker")
NEGATIVE = (Status.NO_ENTRY, Status.NO_LEDGER)
ANSWERED = (Status.OK, *NEGATIVE)
ENDLESS = 1 << 62  # last entry of a growing fragment


class _Line:
    """One connection between a client and a bookie."""

    def __init__(self, near: SimTransport, role: str, bookie: str) -> None:
        self.near, self.number, self.role, self.client, self.bookie = near, near.number, role, near.host, bookie
        self.requests = RequestDecoder(FRAME_SIZE_MAX)
        self.answers: ResponseDecoder | None = None
        self.is_garbled = False
        self.fencing: dict[tuple[int, int], None] = {}  # ledger, entry requested by a fencing read
        self.batches: dict[int, tuple[int, int]] = {}  # request id -> ledger, first entry of a fencing batch read
        self.size = self.read_size = 0  # bytes of answers written by the bookie, and received by the client
        # Answers that the client has not received, each with `size` at its end:
        self.failures: list[tuple[int, int]] = []  # failed adds: size, ledger
        self.shown: list[tuple[int, int, int]] = []  # entries that a recovery requests: size, ledger, entry

    def decode(self, feed: Callable[[bytes], list[T]], data: Buffer) -> list[T]:
        """Return the messages in the data; none after an undecodable message, in either direction."""
        try:
            return [] if self.is_garbled else feed(bytes(data))
        except RemoteProtocolError:
            self.is_garbled = True
            return []


class WireTap:
    """Checker of all messages between clients and bookies. `report(invariant, text)` receives broken promises."""

    def __init__(
        self,
        network: SimNetwork,
        store: SimStore,
        witness: Witness,
        report: Callable[[str, str], None],
        instant: Callable[[], int],
    ) -> None:
        self._store = store
        self._witness = witness
        self._report = report
        self._acks = AckChecker(report, instant, network.loop.time)
        # (ledger, whether a recovery announced it) -> all entries up to this one were seen on ack quorums
        self._sound: dict[tuple[int, bool], int] = {}
        self._denied: dict[tuple[str, int, int], None] = {}  # bookie, ledger, entry: NO_ENTRY to a fencing read
        self._recovering: dict[tuple[str, int], None] = {}  # client, ledger whose tail it reads
        self.denials: dict[tuple[str, int, int], dict[str, None]] = {}  # client, ledger, entry -> bookies
        self._announced: dict[int, int] = {}  # ledger -> the highest last add confirmed that its writer has sent
        self.headers: dict[tuple[int, int], int] = {}  # ledger, entry -> last add confirmed in the entry's header
        self.lengths = LedgerLengthChecker(network.loop.time)
        self.memory_limit: MemoryLimitChecker | None = None  # set if the run's clients have a memory limit
        network.on_join = self._joined

    def _joined(self, near: SimTransport, far: SimTransport) -> None:
        role = next((role for role in ROLES if near.host.startswith(role)), None)
        if role is not None:
            line = _Line(near, role, far.host)
            if role in RECOVERING:
                self.lengths.joined(near, far.host)
            near.outgoing.on_write = lambda data: self._asked(line, data)
            near.incoming.on_write = lambda data: self._answered(line, data)
            near.incoming.on_read = lambda size: self._read(line, size)

    def _asked(self, line: _Line, data: Buffer) -> None:
        for request in line.decode(line.requests.feed, data):
            self._check_request(line, request)

    def _answered(self, line: _Line, data: Buffer) -> None:
        line.size += memoryview(data).nbytes
        if line.answers is None:
            line.answers = ResponseDecoder("v2" if line.requests.is_v2 else "v3", FRAME_SIZE_MAX)
        for response in line.decode(line.answers.feed, data):
            self._check_response(line, response)

    def _read(self, line: _Line, size: int) -> None:
        """Record that the client receives `size` more bytes of answers."""
        line.read_size += size
        while line.failures and line.failures[0][0] <= line.read_size:
            self._acks.learned(line.bookie, line.failures.pop(0)[1])
        while line.shown and line.shown[0][0] <= line.read_size:
            self.lengths.shown(line.client, line.bookie, *line.shown.pop(0)[1:])

    def committed(self, commit: Commit) -> None:
        if commit.after is not None:
            self._acks.committed(commit.after.ledger_id)
            if self.memory_limit is not None and commit.before is not None:
                self.memory_limit.committed(
                    commit.after.ledger_id, commit.before.last_ensemble, commit.after.last_ensemble
                )
            self._check_finished(commit, commit.after)
            if commit.after.is_closed and commit.before is not None and not commit.before.is_closed:
                self.lengths.closed(commit.author, commit.after)

    def _check_finished(self, commit: Commit, after: LedgerMetadata) -> None:
        """Check I-18: an open ledger's fragment is known to be finished only when its writer has announced its end."""
        before, ledger_id = commit.before, after.ledger_id
        if before is None or after.is_closed or not commit.author.startswith("replicator"):
            return
        if before.state is not after.state or before.ensembles == after.ensembles:
            return
        announced = self._announced.get(ledger_id, -1)
        for first, last, ensemble in fragments_of(after, ENDLESS):
            if announced < last and (first, ensemble) not in before.ensembles:
                self._report(
                    "I-18",
                    f"{commit.author} replaces bookies in ledger {ledger_id}, whose fragment from {first} on "
                    f"is not known to be finished: entries up to {announced} are confirmed",
                )

    def excuse_late(self, ledger_id: int) -> None:
        """Accept that the ledger's writer does not replace bookies that fail an entry which has its quorum already."""
        self._acks.excused[ledger_id] = None

    def check_acknowledgement(self, ledger_id: int, first: int, last: int, begun: Callable[[int], int]) -> None:
        """Check the acknowledgement of entries first..last to an application. `begun`: entry -> instant of append."""
        self._acks.acknowledged(self._open_records(ledger_id), ledger_id, first, last, begun)

    # -- requests ------------------------------------------------------------------------------------------------
    def _check_request(self, line: _Line, request: Request) -> None:
        if isinstance(request, AddRequest):
            for part in request.adds.parts():
                self._check_adds(line, part, is_recovery=request.is_recovery)
        elif isinstance(request, WriteLacRequest):
            if line.role != "writer":
                self._report("I-30", f"{line.client} announces an end of ledger {request.ledger_id}")
            self._check_lac(line, request.ledger_id, request.last_add_confirmed, is_recovery=False)
            announced = self._announced.get(request.ledger_id, -1)
            self._announced[request.ledger_id] = max(request.last_add_confirmed, announced)
        elif isinstance(request, ReadRequest) and request.is_fencing:
            line.fencing[request.ledger_id, request.entry_id] = None
            self._check_fencing(line, request.ledger_id, request.entry_id)
        elif isinstance(request, BatchReadRequest) and request.is_fencing:
            line.batches[request.txn_id] = request.ledger_id, request.entry_id
            self._check_fencing(line, request.ledger_id, request.entry_id)
        elif isinstance(request, ReadRequest | BatchReadRequest):
            self._check_plain_read(line, request.ledger_id, request.entry_id)

    def _check_adds(self, line: _Line, adds: Adds, *, is_recovery: bool) -> None:
        """Check a stretch."""
        ledger_id = adds.first_ledger_id
        if line.role == "reader" or (line.role != "writer" and not is_recovery):
            message = "a recovery add" if is_recovery else "an add"
            self._report("I-30", f"{line.client} sends {message} of ledger {ledger_id}")
        self._check_lac(line, ledger_id, adds.lacs[0], is_recovery=is_recovery)
        if is_recovery:
            self.lengths.wrote_back(line.client, ledger_id, max(adds.entry_ids))
            return
        records = self._open_records(ledger_id)
        if self.memory_limit is not None and records and line.bookie in records[0].last_ensemble:
            sizes = [(entry_id, len(adds.records.body(index))) for index, entry_id in enumerate(adds.entry_ids)]
            self.memory_limit.sent(line.client, line.near, line.bookie, ledger_id, sizes)
        for index, entry_id in enumerate(adds.entry_ids):
            body = adds.records.body(index)
            header_lac = self.headers[ledger_id, entry_id] = int.from_bytes(body[16:24], "big", signed=True)
            self._announced[ledger_id] = max(header_lac, self._announced.get(ledger_id, -1))
            positions = frozenset(
                position for record in records for position in _positions(record, entry_id, line.bookie)
            )
            is_prompt = line.read_size > 0
            self._acks.sent(line.number, line.bookie, ledger_id, entry_id, positions, is_prompt=is_prompt)
            if not positions:
                self._report(
                    "I-8",
                    f"{line.client} sends entry {entry_id} of ledger {ledger_id} to {line.bookie}, which no committed "
                    f"record lists for it",
                )

    def _check_lac(self, line: _Line, ledger_id: int, last_add_confirmed: int, *, is_recovery: bool) -> None:
        """Check I-13. Entries that a recovery writes back are provisional until the close and do not count (D-5)."""
        sound = self._sound.get((ledger_id, is_recovery), -1)
        while sound < last_add_confirmed and self._witness.is_on_quorum(ledger_id, sound + 1, by_writer=is_recovery):
            sound += 1
        self._sound[ledger_id, is_recovery] = sound
        if sound < last_add_confirmed:
            now = self._store.record(ledger_id)
            if now is not None and (not now.is_closed or now.last_entry_id < last_add_confirmed):
                self._report(
                    "I-13",
                    f"{line.client} says that ledger {ledger_id} is confirmed up to {last_add_confirmed}, but entry "
                    f"{sound + 1} is on no ack quorum",
                )

    def _check_fencing(self, line: _Line, ledger_id: int, entry_id: int) -> None:
        records = self._records(ledger_id)
        record = next((record for record in records if record.state is LedgerState.IN_RECOVERY), None)
        if line.role == "reader" or record is None:
            self._report("I-30", f"{line.client} fences ledger {ledger_id}, whose recovery was not announced")
            return
        if entry_id < 0:
            return
        if line.bookie not in write_set_of(record, entry_id):
            self._report(
                "I-10",
                f"{line.client} asks {line.bookie} for entry {entry_id} of ledger {ledger_id}, which {record!r} does "
                f"not list for it",
            )
        if (line.client, ledger_id) not in self._recovering:
            self._recovering[line.client, ledger_id] = None
            self._check_coverage(line, record)

    def _check_plain_read(self, line: _Line, ledger_id: int, entry_id: int) -> None:
        """Check I-6: a recovery reads the tail with fencing reads; only the length may come from a plain read."""
        if line.role not in RECOVERING or entry_id < 0:
            return
        self.lengths.asked(line.client, line.bookie, ledger_id, entry_id, is_prompt=line.read_size > 0)
        if (line.client, ledger_id) in self._recovering:
            return
        record = self._store.record(ledger_id)
        if record is not None and record.state is LedgerState.IN_RECOVERY:
            self._report("I-6", f"{line.client} reads entry {entry_id} of ledger {ledger_id} without fencing")

    def _check_coverage(self, line: _Line, record: LedgerMetadata) -> None:
        ensemble = record.last_ensemble
        for first in range(record.ensemble_size):
            positions = write_set(first, record.ensemble_size, record.write_quorum)
            members = [ensemble[position] for position in positions]
            free = [bookie for bookie in members if not self._witness.has_fenced(bookie, record.ledger_id)]
            if len(free) >= record.ack_quorum:
                self._report(
                    "I-5",
                    f"{line.client} reads the tail of ledger {record.ledger_id} although {', '.join(free)} are not "
                    f"fenced and may confirm an entry; the ack quorum is {record.ack_quorum}",
                )

    # -- answers -------------------------------------------------------------------------------------------------
    def _check_response(self, line: _Line, response: Response) -> None:
        if isinstance(response, AddResponses):
            if line.role == "writer":
                is_ok = response.status is Status.OK
                ledger_id, entry_ids = response.ledger_id, response.entry_ids
                self._acks.answered(line.number, line.bookie, ledger_id, entry_ids, is_ok=is_ok)
                if self.memory_limit is not None:
                    self.memory_limit.answered(line.client, line.bookie, ledger_id, entry_ids)
                if is_ok:
                    self._check_acknowledged(line, ledger_id, entry_ids)
                else:
                    line.failures.append((line.size, ledger_id))
        elif isinstance(response, ReadResponse | BatchReadResponse):
            if isinstance(response, ReadResponse):
                asked = (response.ledger_id, response.entry_id)
                is_fencing = asked in line.fencing
            else:
                is_fencing = response.txn_id in line.batches
                asked = line.batches.get(response.txn_id, (response.ledger_id, response.entry_id))
            if response.status is Status.OK and self.lengths.is_awaited(line.client, line.bookie, *asked):
                line.shown.append((line.size, *asked))
            if response.status in NEGATIVE:
                self.denials.setdefault((line.client, *asked), {})[line.bookie] = None
            if is_fencing and response.status in ANSWERED:
                self._check_fenced(line, asked, response.status in NEGATIVE)

    def _check_acknowledged(self, line: _Line, ledger_id: int, entry_ids: Sequence[int]) -> None:
        for entry_id in entry_ids:
            if (line.bookie, ledger_id, entry_id) in self._denied:
                self._report(
                    "I-6",
                    f"{line.bookie} acknowledges entry {entry_id} of ledger {ledger_id}, which it denied to a recovery",
                )

    def _check_fenced(self, line: _Line, asked: tuple[int, int], is_denied: bool) -> None:
        ledger_id, entry_id = asked
        if not self._witness.has_fenced(BookieId(line.bookie), ledger_id):
            self._report("I-28", f"{line.bookie} answers a fencing read of ledger {ledger_id} before it has fenced it")
        if is_denied and entry_id >= 0:
            self._denied[line.bookie, ledger_id, entry_id] = None

    # -- records -------------------------------------------------------------------------------------------------
    def _records(self, ledger_id: int) -> list[LedgerMetadata]:
        """Return every committed record of a ledger, newest first."""
        return [commit.after for commit in reversed(self._store.commits.get(ledger_id, [])) if commit.after is not None]

    def _open_records(self, ledger_id: int) -> list[LedgerMetadata]:
        return [record for record in self._records(ledger_id) if record.state is LedgerState.OPEN]

    def is_denied_by_all(self, client: str, ledger_id: int, entry_id: int) -> bool:
        """Report whether every bookie that some record lists for an entry reported it missing to this client (I-32)."""
        denied = self.denials.get((client, ledger_id, entry_id), {})
        return any(
            all(bookie in denied for bookie in write_set_of(record, entry_id)) for record in self._records(ledger_id)
        )


def _positions(record: LedgerMetadata, entry_id: int, bookie: str) -> list[int]:
    """Return the positions at which the record lists a bookie for an entry."""
    ensemble = record.ensemble_at(entry_id)
    positions = write_set(entry_id, record.ensemble_size, record.write_quorum)
    return [position for position in positions if ensemble[position] == bookie]
