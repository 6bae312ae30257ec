"""What clients and bookies say to each other, read from the wire, and the promises that a message can break.

The tap decodes what either side of a connection writes, at that moment, and changes nothing. It knows a client's role
by its name, the committed records from the store, and what bookies hold and have fenced from the witness:

    I-5    a recovery reads the tail only when no write set could confirm anything behind its back any more
    I-6    a bookie that denied an entry to a fencing read never acknowledges it to the writer
    I-8    the writer sends an entry only to bookies that a committed record lists for it
    I-10   recovery reads go to the bookies of the record that announced the recovery
    I-9    an answer counts for the position its entry was sent to (`lab/sim/checkers/ack_counting.py`, as is what fails late)
    I-15   who closes a ledger knows its length, unless the last entry cannot be read (`lab/sim/checkers/ledger_length.py`)
    I-13   a last add confirmed in a message is true: all up to it is on ack quorums, or the ledger is closed behind it
    I-18   nobody replaces a bookie in an open ledger's fragment that is not known to be finished
    I-28   a bookie answers a fencing request only when it has fenced the ledger
    I-30   readers neither add nor fence nor announce; recoveries send no ordinary adds; nobody fences unannounced
    I-32   what was denied to whom, for the readers' "no such entry"
    memory no client holds more than its limit (`lab/sim/checkers/memory_limit.py`)

Source: client-protocol 8.1, 8.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bookies.errors import RemoteProtocolError, Status
from bookies.lab.sim.checkers.ack_counting import AckChecker
from bookies.lab.sim.checkers.ledger_length import LedgerLengthChecker
from bookies.lab.sim.checkers.memory_limit import MemoryLimitChecker
from bookies.lab.sim.world.network import SimNetwork, SimTransport
from bookies.lab.sim.world.sim_metadata import Commit, SimStore
from bookies.lab.sim.world.witness import Witness
from bookies.model import BookieId, LedgerMetadata, LedgerState, fragments_of
from bookies.protocol.quorums import write_set
from bookies.runtime.ports import Buffer
from bookies.wire.client import ResponseDecoder
from bookies.wire.messages import (
    AddBatch,
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

FRAME_SIZE_MAX = 1 << 24
ROLES = ("writer", "recoverer", "reader", "checker")
RECOVERING = ("recoverer", "checker")
NEGATIVE = (Status.NO_ENTRY, Status.NO_LEDGER)
ANSWERED = (Status.OK, *NEGATIVE)
ENDLESS = 1 << 62  # last entry of a fragment that grows


class _Line:
    """One connection between a client and a bookie."""

    def __init__(self, near: SimTransport, role: str, bookie: str) -> None:
        self.near, self.number, self.role, self.client, self.bookie = near, near.number, role, near.host, bookie
        self.requests = RequestDecoder(FRAME_SIZE_MAX)
        self.answers: ResponseDecoder | None = None
        self.is_garbled = False
        self.fencing: dict[tuple[int, int], None] = {}  # ledger, entry that fencing reads asked for
        self.batches: dict[int, tuple[int, int]] = {}  # request id -> ledger, first entry of a fencing batch read
        self.size = self.read_size = 0  # bytes of answers written, and seen by the client
        self.failures: list[tuple[int, int]] = []  # failed adds that it has not seen: size before its end, ledger
        self.shown: list[tuple[int, int, int]] = []  # likewise of entries that a recovery asks for: ledger, entry


class WireTap:
    """`report(invariant, text)` is told of broken promises."""

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
        # (ledger, is a recovery's) -> entries up to this one were seen on ack quorums
        self._sound: dict[tuple[int, bool], int] = {}
        self._denied: dict[tuple[str, int, int], None] = {}  # bookie, ledger, entry, to fencing reads
        self._recovering: dict[tuple[str, int], None] = {}  # client, ledger whose tail is being read
        self.denials: dict[tuple[str, int, int], dict[str, None]] = {}  # client, ledger, entry -> bookies
        self._announced: dict[int, int] = {}  # ledger -> up to where its writer has said that it is confirmed
        self.headers: dict[tuple[int, int], int] = {}  # ledger, entry -> the last add confirmed that it carries
        self.lengths = LedgerLengthChecker(network.loop.time)
        self.pending: MemoryLimitChecker | None = None  # what clients hold, when that has a limit
        network.on_join = self._joined

    def _joined(self, near: SimTransport, far: SimTransport) -> None:
        role = next((role for role in ROLES if near.host.startswith(role)), None)
        if role is not None:
            line = _Line(near, role, far.host)
            if role in RECOVERING:
                self.lengths.joined(near, far.host)
            near.on_write = lambda data: self._asked(line, data)
            far.on_write = lambda data: self._answered(line, data)
            near.on_read = lambda size: self._read(line, size)

    def _asked(self, line: _Line, data: Buffer) -> None:
        if line.is_garbled:
            return
        try:
            requests = line.requests.feed(bytes(data))
        except RemoteProtocolError:
            line.is_garbled = True
            return
        for request in requests:
            self._check_request(line, request)

    def _answered(self, line: _Line, data: Buffer) -> None:
        line.size += memoryview(data).nbytes
        if line.is_garbled:
            return
        if line.answers is None:
            line.answers = ResponseDecoder("v2" if line.requests.is_v2 else "v3", FRAME_SIZE_MAX)
        try:
            responses = line.answers.feed(bytes(data))
        except RemoteProtocolError:
            line.is_garbled = True
            return
        for response in responses:
            self._check_response(line, response)

    def _read(self, line: _Line, size: int) -> None:
        """The client sees so many bytes more."""
        line.read_size += size
        while line.failures and line.failures[0][0] <= line.read_size:
            self._acks.learned(line.bookie, line.failures.pop(0)[1])
        while line.shown and line.shown[0][0] <= line.read_size:
            self.lengths.shown(line.client, line.bookie, *line.shown.pop(0)[1:])

    def committed(self, commit: Commit) -> None:
        if commit.after is not None:
            self._acks.committed(commit.after.ledger_id)
            if self.pending is not None and commit.before is not None:
                self.pending.committed(commit.after.ledger_id, commit.before.last_ensemble, commit.after.last_ensemble)
            self._check_finished(commit, commit.after)
            if commit.after.is_closed and commit.before is not None and not commit.before.is_closed:
                self.lengths.closed(commit.author, commit.after)

    def _check_finished(self, commit: Commit, after: LedgerMetadata) -> None:
        """I-18: nobody can know that a fragment of an open ledger is finished before its writer has said so."""
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
        """The ledger's writer is set not to replace bookies that fail what has its quorum already."""
        self._acks.excused[ledger_id] = None

    def check_acknowledgement(self, ledger_id: int, first: int, last: int, begun: Callable[[int], int]) -> None:
        """Entries first..last, of which `begun` tells when their appends began, are acknowledged to an application."""
        self._acks.acknowledged(self._open_records(ledger_id), ledger_id, first, last, begun)

    # -- requests ------------------------------------------------------------------------------------------------
    def _check_request(self, line: _Line, request: Request) -> None:
        if isinstance(request, AddBatch):
            self._check_adds(line, request)
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

    def _check_adds(self, line: _Line, batch: AddBatch) -> None:
        ledger_id = batch.ledger_id
        if line.role == "reader" or (line.role != "writer" and not batch.is_recovery):
            kind = "a recovery add" if batch.is_recovery else "an add"
            self._report("I-30", f"{line.client} sends {kind} of ledger {ledger_id}")
        self._check_lac(line, ledger_id, batch.last_add_confirmed, is_recovery=batch.is_recovery)
        if batch.is_recovery:
            self.lengths.wrote_back(line.client, ledger_id, max(batch.entry_ids))
            return
        records = self._open_records(ledger_id)
        if self.pending is not None and records and line.bookie in records[0].last_ensemble:
            sizes = [(entry_id, len(batch.records.body(index))) for index, entry_id in enumerate(batch.entry_ids)]
            self.pending.sent(line.client, line.near, line.bookie, ledger_id, sizes)
        for index, entry_id in enumerate(batch.entry_ids):
            body = batch.records.body(index)
            said = self.headers[ledger_id, entry_id] = int.from_bytes(body[16:24], "big", signed=True)
            self._announced[ledger_id] = max(said, self._announced.get(ledger_id, -1))
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
        """What a recovery writes back is provisional until the close, so it proves no entry confirmed (D-5)."""
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
        record = next((each for each in self._records(ledger_id) if each.state is LedgerState.IN_RECOVERY), None)
        if line.role == "reader" or record is None:
            self._report("I-30", f"{line.client} fences ledger {ledger_id}, whose recovery nobody has announced")
            return
        if entry_id < 0:
            return
        if line.bookie not in _write_set(record, entry_id):
            self._report(
                "I-10",
                f"{line.client} asks {line.bookie} for entry {entry_id} of ledger {ledger_id}, which {record!r} does "
                f"not list for it",
            )
        if (line.client, ledger_id) not in self._recovering:
            self._recovering[line.client, ledger_id] = None
            self._check_coverage(line, record)

    def _check_plain_read(self, line: _Line, ledger_id: int, entry_id: int) -> None:
        """I-6: a recovery decides about the tail by reads that fence; only the length may come from another one."""
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
            members = [ensemble[each] for each in write_set(first, record.ensemble_size, record.write_quorum)]
            free = [each for each in members if not self._witness.has_fenced(each, record.ledger_id)]
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
                if self.pending is not None:
                    self.pending.answered(line.client, line.bookie, ledger_id, entry_ids)
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
        """Every committed one, the newest first."""
        return [commit.after for commit in reversed(self._store.commits.get(ledger_id, [])) if commit.after is not None]

    def _open_records(self, ledger_id: int) -> list[LedgerMetadata]:
        return [record for record in self._records(ledger_id) if record.state is LedgerState.OPEN]

    def is_denied_by_all(self, client: str, ledger_id: int, entry_id: int) -> bool:
        """I-32: whether every bookie that some record lists for an entry denied it to this client."""
        denied = self.denials.get((client, ledger_id, entry_id), {})
        return any(
            all(bookie in denied for bookie in _write_set(record, entry_id)) for record in self._records(ledger_id)
        )


def _positions(record: LedgerMetadata, entry_id: int, bookie: str) -> list[int]:
    """Where the record lists a bookie for an entry."""
    ensemble = record.ensemble_at(entry_id)
    return [each for each in write_set(entry_id, record.ensemble_size, record.write_quorum) if ensemble[each] == bookie]


def _write_set(record: LedgerMetadata, entry_id: int) -> list[str]:
    ensemble = record.ensemble_at(entry_id)
    return [ensemble[each] for each in write_set(entry_id, record.ensemble_size, record.write_quorum)]
