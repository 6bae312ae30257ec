"""`Log`: entries without an end, as a list of ledgers. Create, lead, read, truncate, delete.

A log has one *leader* at a time, who appends to it (`lead`). Taking the lead stops the present leader, at any moment,
without loss of acknowledged entries. Processes that want to take turns lead with `wait=True`; the log is safe without
that. Readers need no permission and disturb no other process.

`protocol/log/log_model.py` proves the safety. Source: client-protocol 5.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING

from bookies.client.base import Opening
from bookies.client.base.arguments import (
    Moment,
    TimeLimit,
    milliseconds,
    quorums,
    rate,
    seconds,
    switch,
    whole_number,
)
from bookies.client.base.arguments import moment as moment_of
from bookies.client.base.arguments import position as position_of
from bookies.client.base.keys import digest_type_of
from bookies.client.base.metadata_loop import repeated
from bookies.client.base.segments import LOGS
from bookies.client.log.base.cursor_store import LogCursors
from bookies.client.log.base.log_operations import LogContext, empty, end_of, sweep, take_over, truncate
from bookies.client.log.base.log_reader import LogReader
from bookies.client.log.base.seeking import points_of, position_at
from bookies.client.log.base.time_index import TimeIndex
from bookies.client.log.consumers import ConsumerState, LogConsumer, SharedContest, SharedLogConsumer, consumer_states
from bookies.client.log.consumers.consumer_states import lags
from bookies.client.log.log_appends import Pace
from bookies.client.log.log_writer import LogWriter
from bookies.client.log.record_writer import RecordLogWriter
from bookies.client.log.records.open_sets import LINGER_S
from bookies.client.log.retaining import (
    Compactor,
    LogCompaction,
    LogRetention,
    LogRollUp,
    RollUpProgress,
    policy_of,
)
from bookies.client.log.sequenced import NumberedAppends, SequencedWriter
from bookies.client.log.set_writer import SetLogWriter
from bookies.client.log.transaction import COMMIT_TIMEOUT_S, OnOpenTail, Reaped, TransactionContext, reap
from bookies.client.log.transaction_writer import LEDGER_SIZE, CommitOptions, LogTransaction
from bookies.client.turns.leader_turn import LeaderTurn
from bookies.client.turns.lease import CONSUMERS, LEADERS, TTL_S, Contest, Election, new_id, own_text
from bookies.client.write.manifest import ManifestLoop
from bookies.encoding.record_sets import codec_of
from bookies.errors import (
    BookKeeperError,
    InvalidArgument,
    LeaseHeld,
    LedgerNotFound,
    LogExists,
    LogNotFound,
    RecordExists,
    RecordNotFound,
)
from bookies.metadata.interface import MetadataDriver
from bookies.model import DigestType
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.cursors import Cursor
from bookies.protocol.log.lag import Lag
from bookies.protocol.log.lease import LeaseQueue
from bookies.protocol.log.log_model import (
    COMPACT_BY_KEY,
    ENVELOPE,
    RAW,
    RECORD_FORMATS,
    SETS,
    check_log_name,
    emptied,
    pack_manifest,
)
from bookies.protocol.log.log_times import begun_ms
from bookies.protocol.log.member import Member
from bookies.protocol.log.retention import LogRemoval, Retention, RetentionDecision, retention_fields
from bookies.protocol.log.sequences import CURSOR as SEQUENCES_CURSOR
from bookies.protocol.log.transaction import ORPHAN_GRACE_MS, REPLAY_GRACE_MS
from bookies.protocol.pacing import RateLimit
from bookies.protocol.payloads.schemas import Check, LogSchema, LogSchemas, schemas_of, with_schema
from bookies.runtime.ports import Runtime

if TYPE_CHECKING:
    from bookies.client.log.base.ledger_client import LedgerClient

__all__ = ["LOGS", "Log"]
WRITERS: dict[str, type[LogWriter]] = {RAW: LogWriter, ENVELOPE: RecordLogWriter, SETS: SetLogWriter}
TOMBSTONE_S = 86_400.0  # seconds that the last record of a key stays if it has no value


class Log:
    """One log by its name. Made by `Client.log`, which sends no request: the log may or may not exist."""

    def __init__(
        self, client: LedgerClient, runtime: Runtime, driver: MetadataDriver, name: str, password: bytes
    ) -> None:
        self.name = check_log_name(name)
        self._client = client
        self._runtime = runtime
        self._driver = driver
        self._password = password

    def __repr__(self) -> str:
        return f"<Log {self.name}>"

    async def create(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        digest: str | DigestType = "crc32c",
        record_format: str = RAW,
        compression: str | None = None,
        retention: Mapping[str, float | None] | None = None,
        compaction: str = "",
        exist_ok: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Create the log, without entries. The numbers are those of each of its ledgers: see `Client.create`.

        `record_format`: the content of an entry: "raw", the value itself, "envelope", a record with key, headers and
        timestamp, or "sets", many such records. Every writer keeps to it. `compression`: of record sets: "zstd" or
        "lz4". `retention`: limits under the names that `set_retention` has. `compaction`: "key" allows `compact`, for
        envelopes; "" does not. `exist_ok`: accept a log that exists, with any numbers. `timeout`: seconds.

        Raises `LogExists`, `InvalidArgument`, `ConfigError` (the library of the compression is missing).
        """
        ensemble, write_quorum, ack_quorum = quorums(ensemble, write_quorum, ack_quorum)
        token = f"{self._runtime.random.getrandbits(64):016x}"
        now_ms = self._runtime.clock.wall_ms()
        if record_format not in RECORD_FORMATS:
            raise InvalidArgument(f"record_format={record_format!r}: expected one of {', '.join(RECORD_FORMATS)}")
        if codec_of(compression) and record_format != SETS:
            raise InvalidArgument(f'compression={compression!r}: needs record_format="{SETS}"')
        if compaction not in ("", COMPACT_BY_KEY):
            raise InvalidArgument(f'compaction={compaction!r}: expected "{COMPACT_BY_KEY}" or ""')
        if compaction and record_format != ENVELOPE:
            raise InvalidArgument(f'compaction by key is for records with keys: give record_format="{ENVELOPE}" too')
        new = Manifest(
            token,
            now_ms,
            ensemble,
            write_quorum,
            ack_quorum,
            digest_type_of(digest),
            record_format,
            compression,
            retention=retention_fields(policy_of(**retention or {})),
            compaction=compaction,
        )

        async def make() -> None:
            try:
                await self._driver.create_record(LOGS + self.name, pack_manifest(new))
            except RecordExists:
                existing = await ManifestLoop(self._runtime, self._driver, self.name).refresh()
                if existing.is_deleting:
                    raise LogExists(f"log {self.name} is being deleted: `delete` it again if that stopped") from None
                if existing.token != token and not exist_ok:  # otherwise it is ours, and the reply was lost
                    raise LogExists(f"log {self.name} already exists") from None

        async with TimeLimit(timeout, f"create log {self.name}"):
            await repeated(self._runtime, make)

    async def manifest(self, *, timeout: float | None = None) -> Manifest:
        """Return the current list of its ledgers. Raises `LogNotFound`."""
        async with TimeLimit(timeout, f"read the list of log {self.name}"):
            return (await self._parts()).records.current

    def lead(
        self,
        *,
        roll_size: int = 256 << 20,
        roll_age: float = 7200.0,
        linger: float = LINGER_S,
        wait: bool = False,
        text: str | None = None,
        is_candidate: Callable[[], bool] | None = None,
        timeout: float | None = None,
    ) -> Opening[LogWriter]:
        """Become the leader, who appends: `async with log.lead() as writer`, or await it.

        The present leader is stopped and gets `LogFenced`; its acknowledged entries stay. When this returns, all
        earlier entries are readable, and only this writer can append. `roll_size`, `roll_age`: payload bytes, and
        seconds, after which entries go to a new ledger. `linger`: seconds that a record set is open at most, while
        others are in flight. `wait`: processes that lead with True take turns: each waits,
        in order, until the one before has closed its writer, or was silent for 10 s. `text`: what `leader` returns
        while it has the turn; default: host and process id. `is_candidate`: asked before each attempt; False ends
        them. `timeout`: seconds.

        Leaving the block closes the writer; leaving it by an exception only releases it. Raises `LogNotFound`,
        `LogFenced` (not a candidate any more), `ConfigError` (the library of the log's compression is missing),
        `Unauthorized` (not the password of the log's ledgers), `RecoveryFailed`, `NotEnoughBookies` and other
        errors that last too long.
        """
        roll_size = whole_number("roll_size", roll_size, 1)
        if isinstance(roll_age, bool) or not isinstance(roll_age, int | float) or not roll_age > 0:
            raise InvalidArgument(f"roll_age={roll_age!r}: must be a number of seconds above 0")

        linger_s = seconds(linger, "linger") or 0.0
        wait = switch("wait", wait)

        async def make() -> LogWriter:
            parts = await self._parts()
            codec_of(parts.records.current.compression)  # Without its library no other leader may be stopped.
            turn = LeaderTurn(self._leader_contest(), text) if wait else None
            try:
                if turn is not None:
                    await turn.enter()
                ledger = await take_over(parts, is_candidate=is_candidate)
            except BaseException as error:
                if turn is not None:
                    await turn.release()
                    await self._clear(self._leader_contest(), error)
                raise
            numbered = NumberedAppends(self._parts, self._driver)
            writer_class = WRITERS[parts.records.current.record_format]
            return writer_class(parts, ledger, Pace(roll_size, roll_age, linger_s), turn, numbered)

        return Opening(make, timeout, f"take the lead of log {self.name}")

    async def leader(self, *, timeout: float | None = None) -> str | None:
        """Return the text of the process whose turn it is to lead (`lead(wait=True)`), None if there is none.

        A process that died counts until its turn has ended. `timeout`: seconds.
        """
        return await Election(self._leader_contest()).leader(timeout=timeout)

    async def sequenced(self, leader: LogWriter, *, timeout: float | None = None) -> SequencedWriter:
        """Return the writer of numbered entries, which appends through a leader of this log: see `SequencedWriter`.

        A leader has one, which `leader.append(..., producer=...)` uses too. The first use reads the numbers that the
        log holds. Raises `InvalidArgument` (its record format is raw), `LogNotFound`, and the errors of reading.
        """
        async with TimeLimit(timeout, f"read the numbers of log {self.name}"):
            return await leader.numbered()

    def open(self, *, timeout: float | None = None) -> Opening[LogReader]:
        """Open the log for reading and tailing. Raises `LogNotFound`. `timeout`: seconds."""

        async def make() -> LogReader:
            return LogReader(await self._parts())

        return Opening(make, timeout, f"open log {self.name}")

    async def at(self, time: Moment, *, is_end: bool = False, timeout: float | None = None) -> Position | None:
        """Return the position of the first entry that may have been appended at a time or later.

        `time`: a datetime with a time zone, or seconds since 1970. An entry is appended when it is confirmed, by its
        leader's clock; the timestamp in a record does not count. No entry of that time or later is before the position;
        earlier ones may follow it, usually of a second. Of a time in the future it is the end of the log. `is_end`: the
        position after the last entry that may have been appended before that time. None: the log has no ledger yet.
        `timeout`: seconds.

        Raises `InvalidArgument`, `LogNotFound`, and the errors of reading.
        """
        time_ms, is_end = moment_of("time", time), switch("is_end", is_end)
        async with TimeLimit(timeout, f"seek in log {self.name}"):
            return await position_at(await self._parts(), time_ms, is_end=is_end)

    async def begun(self, *, timeout: float | None = None) -> dict[int, int]:
        """Return when ledgers of the log got their first entry at the earliest, in ms since 1970, by `Extent.seq`.

        Ledgers are missing whose leader or transaction has not noted it. Raises `LogNotFound`.
        """
        async with TimeLimit(timeout, f"read the times of log {self.name}"):
            parts = await self._parts()
            return begun_ms(parts.records.current, await points_of(parts))

    # -- transactions --------------------------------------------------------------------------------------------
    def transaction(
        self,
        app: str,
        version: int,
        *,
        ledger_size: int = LEDGER_SIZE,
        is_replacing: bool = False,
        on_open_tail: OnOpenTail = "fail",
        timeout: float | None = COMMIT_TIMEOUT_S,
    ) -> LogTransaction:
        """Append entries all at once, or not at all: `async with log.transaction("loader", 7) as txn`.

        Repeat a block that failed with the same `app` and `version`: committed entries are not appended again.
        Versions of one application only grow; a smaller one than the last counts as committed. `ledger_size`: payload
        bytes of each ledger. `is_replacing`: the log holds nothing else afterwards. `on_open_tail`: the action when a
        leader writes the log: "fail", or "fence", which stops it. `timeout`: of the commit, seconds.

        The block raises `LogNotFound` and the errors of `LedgerWriter.append_many`, and at its end `LogInUse`,
        `TransactionRefused` (a stream's application), or `LogError` (no answer in time: repeat it to find out).
        """
        version, ledger_size = whole_number("version", version), whole_number("ledger_size", ledger_size, 1)
        options = CommitOptions(switch("is_replacing", is_replacing), on_open_tail, seconds(timeout))
        return LogTransaction(self._transaction_parts(), self.name, app, version, ledger_size, options)

    async def reap(
        self,
        *,
        app: str | None = None,
        dry_run: bool = False,
        orphan_grace: float = ORPHAN_GRACE_MS / 1000,
        replay_grace: float = REPLAY_GRACE_MS / 1000,
    ) -> AsyncIterator[Reaped]:
        """Delete ledgers that transactions wrote for this log and will not commit: of dead tasks and lost attempts.

        Return one row for each ledger that the log does not list. `app`: only of this application. `orphan_grace`:
        seconds after which an unknown transaction is given up; a later commit of it is refused. `replay_grace`: the
        same for left-overs of committed ones. Reads the records of all ledgers of the cluster.
        """
        async for row in reap(
            self._transaction_parts(),
            self.name,
            app=app,
            is_dry_run=dry_run,
            orphan_grace_ms=_grace_ms("orphan_grace", orphan_grace),
            replay_grace_ms=_grace_ms("replay_grace", replay_grace),
        ):
            yield row

    def _transaction_parts(self) -> TransactionContext:
        return TransactionContext(self._client, self._runtime, self._driver, self._password)

    async def truncate(self, before: Position, *, force: bool = False, timeout: float | None = None) -> None:
        """Truncate the log before a position: earlier entries cannot be read any more, and their ledgers are deleted.

        Any client may do this, also while a leader writes. The last two ledgers are deleted only after others have
        followed them. When it fails or is cancelled half-way, the next truncation or leader does the rest. Raises
        `CursorBehind` (a cursor has not reached the position) unless `force`, `LogTruncated` (a position that is not
        in the log), `InvalidArgument` (after its end), `LogNotFound`.
        """
        before, force = position_of("before", before), switch("force", force)
        async with TimeLimit(timeout, f"truncate log {self.name}"):
            await truncate(await self._parts(), before, is_forced=force)

    async def cursors(self, *, timeout: float | None = None) -> dict[str, Cursor]:
        """Return the named cursors: the progress of consumers. Truncation does not pass them. Raises `LogNotFound`."""
        async with TimeLimit(timeout, f"read the cursors of log {self.name}"):
            parts = await self._parts()
            return (await repeated(self._runtime, parts.cursors.read))[0]

    async def move_cursor(
        self, name: str, position: Position, *, expected: Position | None = None, timeout: float | None = None
    ) -> None:
        """Move a cursor before an entry, forward or back. A cursor that does not exist is created.

        `entry.position.next` marks the entry as processed. `name`: like names of logs. `expected`: move it only from
        this position, so that two consumers of one name notice each other. Raises `LogTruncated` (a position that is
        not in the log), `CursorMoved` (it is not at `expected`), `LeaseHeld` (a consumer of that name runs; after one
        that died, this waits until its `ttl` is over), `LogNotFound`, `InvalidArgument`.
        """
        position = position_of("position", position)
        expected = None if expected is None else position_of("expected", expected)
        check_log_name(name, "cursor")
        async with TimeLimit(timeout, f"move cursor {name} of log {self.name}"):
            parts = await self._parts()
            try:
                contest = self._consumer_contest(name)
                queue, _ = await repeated(self._runtime, contest.queue)
            except InvalidArgument:
                queue = LeaseQueue()  # The names are too long together, so none can consume under them.
            if not queue.participants and queue.shares is None:
                # A consumer that begins meanwhile has a larger token.
                await parts.cursors.move(name, position, expected, token=queue.next_token - 1)
                return
            try:
                lease = await contest.opening(wait=False)  # It passes a consumer that has died.
            except LeaseHeld as error:
                text = f"cursor {name} was not moved, which its consumer's next commit would undo: {error.message}, or "
                raise LeaseHeld(f"{text}delete the cursor, which ends it") from error
            try:
                await parts.cursors.move(name, position, expected, token=lease.token)
            finally:
                await lease.release()

    async def delete_cursor(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a cursor, which then holds no truncation back. One that does not exist counts as deleted.

        Its consumer ends with `CursorMoved`, within a third of its `ttl`. Raises `LogNotFound`.
        """
        async with TimeLimit(timeout, f"delete cursor {name} of log {self.name}"):
            await (await self._parts()).cursors.delete(name, self._consumer_contest(name).ending)

    # -- retention -----------------------------------------------------------------------------------------------
    async def set_retention(
        self,
        *,
        age: float | None = None,
        size: int | None = None,
        rows: int | None = None,
        cursor_age: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Set which entries are kept; auto-recovery removes older ledgers from then on. Without a limit it keeps all.

        `age`: seconds since the last entry of a ledger. `size`, `rows`: payload bytes and entries that stay. A ledger
        that any limit allows to go is removed. `cursor_age`: seconds after which a cursor that has not moved keeps
        nothing. `timeout`: seconds. Raises `InvalidArgument`, `LogNotFound`.
        """
        policy = policy_of(age=age, size=size, rows=rows, cursor_age=cursor_age)
        async with TimeLimit(timeout, f"set the retention of log {self.name}"):
            await (await self._retention()).set_policy(policy)

    async def retention(self, *, timeout: float | None = None) -> Retention:
        """Return the limits that `set_retention` has set. Raises `LogNotFound`."""
        async with TimeLimit(timeout, f"read the retention of log {self.name}"):
            return (await self._retention()).policy

    async def retention_decision(self, *, timeout: float | None = None) -> RetentionDecision:
        """Return what `apply_retention` would remove first, and which cursors keep more. Raises `LogNotFound`."""
        async with TimeLimit(timeout, f"decide the retention of log {self.name}"):
            return await (await self._retention()).decide()

    async def apply_retention(self, *, timeout: float | None = None) -> list[LogRemoval]:
        """Remove what the limits allow to go, now, and return it. Needs no password. Raises `LogNotFound`."""
        async with TimeLimit(timeout, f"apply the retention of log {self.name}"):
            return await (await self._retention()).apply()

    async def history(self, *, timeout: float | None = None) -> list[LogRemoval]:
        """Return the last 100 removals of retention, the oldest first. Raises `LogNotFound`."""
        async with TimeLimit(timeout, f"read the history of log {self.name}"):
            return await (await self._retention()).history()

    async def compact(
        self, *, tombstone_age: float = TOMBSTONE_S, dry_run: bool = False, timeout: float | None = None
    ) -> LogCompaction:
        """Keep only the last record of each key, in the closed ledgers of the log. Positions do not change.

        Records without a key stay. A last record without a value, a tombstone, stays until its ledger has ended
        `tombstone_age` seconds ago, and an earlier compaction has removed what it deletes. `dry_run`: change nothing.
        `timeout`: seconds. It may be repeated and interrupted at any time. Raises `InvalidArgument` (the log was
        created without `compaction="key"`), `LogInUse` (another process compacts it), `LogTruncated`, `LogNotFound`,
        and the errors of reading and appending.
        """
        is_dry = switch("dry_run", dry_run)
        async with TimeLimit(timeout, f"compact log {self.name}"):
            return await (await compactor_of(self, tombstone_age)).run(is_dry=is_dry)

    async def roll_up(
        self,
        *,
        below: int = 64 << 20,
        rate: float | None = None,
        dry_run: bool = False,
        progress: RollUpProgress | None = None,
        timeout: float | None = None,
    ) -> LogRollUp:
        """Merge neighbouring closed ledgers with less than `below` payload bytes into ledgers with at least that many.

        Entries, their positions and their times do not change. Readers, leaders and consumers go on. Each new ledger is
        read back before one swap of the list puts it in place of those that it merges. `rate`: bytes a second that are
        read. `dry_run`: change nothing. `progress`: is called with the payload bytes that are written, and those of the
        whole work. `timeout`: seconds. It may be interrupted at any time; repeat it for the rest. Ledgers that are
        offloaded stay. Raises `InvalidArgument`, `LogInUse` (another process rewrites the log), `LogTruncated`,
        `LogFenced` (the log is held), `LogNotFound`, `DigestMismatch` (a copy is wrong; the log is unchanged), and the
        errors of reading and appending.
        """
        below, is_dry = whole_number("below", below, 1), switch("dry_run", dry_run)
        async with TimeLimit(timeout, f"roll up log {self.name}"):
            return await (await compactor_of(self)).roll_up(below, RateLimit(rate), is_dry=is_dry, progress=progress)

    # -- schemas -------------------------------------------------------------------------------------------------
    async def schemas(self, *, timeout: float | None = None) -> LogSchemas:
        """Return the schemas of the log's payloads. Raises `LogNotFound`, `MetadataCorrupt`."""
        return schemas_of(await self.manifest(timeout=timeout))

    async def add_schema(
        self,
        schema_format: str,
        text: str,
        check: Check,
        *,
        message: str = "",
        compatibility: str | None = None,
        timeout: float | None = None,
    ) -> LogSchema:
        """Make a schema the newest of the log, unless the log has it, and return it with its id.

        `schema_format`: "avro", "protobuf", "json" or "arrow"; one for each log. `check`: called with the schemas that
        the log has, before each attempt; raises `SchemaIncompatible`. `bookies.formats.checked_by` returns one.
        `message`: Protobuf's. `compatibility`: the rule from now on; None: the log's, which is "backward" at first.
        `timeout`: seconds. Raises `InvalidArgument`, `LogNotFound`, and what `check` raises.
        """

        new = LogSchema(0, text, message)

        def change(manifest: Manifest) -> Manifest | None:
            return with_schema(manifest, new, schema_format, compatibility, check)

        async with TimeLimit(timeout, f"add a schema to log {self.name}"):
            kept = schemas_of(await (await self._parts()).records.update(change)).find(new)
        assert kept is not None
        return kept

    async def _retention(self) -> LogRetention:
        return LogRetention(await self._parts(), self._driver)

    def consumer(
        self,
        name: str,
        *,
        failover: bool = True,
        shared: bool = False,
        claim_size: int = 1_000,
        commit_interval: float | None = 1.0,
        start: Position | None = None,
        ttl: float = TTL_S,
        timeout: float | None = None,
    ) -> Opening[LogConsumer]:
        """Consume the log under a name: `async with log.consumer("billing") as rows`, then `async for entry in rows`.

        One process at a time has that name, or several divide the log among them. The consumer begins at the cursor of
        that name, where the last one stopped, and follows the log without an end. See `LogConsumer`.

        * `failover`: wait, in order, until the present consumer ends or was silent for its `ttl`. With False, raise
          `LeaseHeld` as soon as it gives a sign of life.
        * `shared`: divide the log with the other processes that consume under this name with True. Each entry is given
          to one of them, and to another one if that ends before it has committed the entry. They wait for a consumer
          with False, and such a one waits for them.
        * `claim_size`: entries that a process claims at a time with `shared`, at most.
        * `commit_interval`: seconds between two commits of what was handled. None: only `commit`, and at the end.
        * `start`: where to begin if there is no cursor; default: at the beginning of the log.
        * `ttl`: seconds after which a silent consumer is replaced.
        * `timeout`: seconds until it has begun.

        Raises `LeaseHeld`, `LogNotFound`, `InvalidArgument`, `LogTruncated` (a forced truncation has passed the cursor:
        move or delete it).
        """
        check_log_name(name, "consumer")
        if name == SEQUENCES_CURSOR:
            raise InvalidArgument(f"cursor {name} is that of numbered entries: consume under another name")
        start = None if start is None else position_of("start", start)
        contest, waits = self._consumer_contest(name), switch("failover", failover)
        entering = contest.opening(ttl, waits)
        interval_s = rate("commit_interval", commit_interval)
        shared, claim_size = switch("shared", shared), whole_number("claim_size", claim_size, 1)

        async def consume(parts: LogContext) -> LogConsumer:
            if shared:
                member = Member(new_id(self._runtime), own_text(), ttl, waits=waits, claim_size=claim_size)
                group = SharedContest(
                    contest.runtime, contest.driver, contest.record, contest.title, parts.cursors, name, member
                )
                return await SharedLogConsumer.share(parts, group, start, interval_s, ttl)
            lease = await entering
            try:
                return await LogConsumer.begin(parts, name, lease, start, interval_s)
            except BaseException:
                await lease.release()
                raise

        async def make() -> LogConsumer:
            parts = await self._parts()
            try:
                return await consume(parts)
            except BaseException as error:
                await self._clear(self._consumer_contest(name), error)
                raise

        return Opening(make, timeout, f"begin to consume log {self.name} as {name}")

    async def consumers(self, *, timeout: float | None = None) -> dict[str, ConsumerState]:
        """Return the cursors with their lag and who consumes. Asks bookies for the end of the log. `timeout`: seconds.

        The cursor `bk-sequences` is missing: it belongs to numbered entries, not to a consumer. Raises `LogNotFound`.
        """
        async with TimeLimit(timeout, f"read the consumers of log {self.name}"):
            return await consumer_states(await self._parts(), self._consumer_contest)

    async def lag(self, position: Position, *, timeout: float | None = None) -> Lag:
        """Return what a consumer has not handled yet whose next entry has this position. `timeout`: seconds.

        Asks bookies for the end of the log, and reads one entry if entries have timestamps. Raises `LogNotFound`.
        """
        async with TimeLimit(timeout, f"measure the lag in log {self.name}"):
            return (await lags(await self._parts(), {"": position_of("position", position)}))[""]

    async def delete(self, *, timeout: float | None = None) -> None:
        """Delete the log and its ledgers for ever. One that does not exist counts as deleted.

        Its leader is stopped. When it fails or is cancelled half-way, the log cannot be used any more: repeat it.
        """
        async with TimeLimit(timeout, f"delete log {self.name}"):
            records = ManifestLoop(self._runtime, self._driver, self.name)
            parts = self._parts_of(records)
            try:
                await repeated(self._runtime, records.refresh)
                await empty(parts)
                for ledger_id in (await records.update(emptied)).deleting:
                    try:
                        if not await self._client.is_sealed(ledger_id):
                            # Otherwise its writer would continue in a ledger that is in no list.
                            await end_of(parts, ledger_id)
                    except LedgerNotFound:
                        continue  # An earlier or concurrent deletion was here.
                await sweep(parts)
                await parts.cursors.delete_all()
                await repeated(self._runtime, records.sweep)
                await repeated(self._runtime, lambda: self._driver.delete_record(records.record, records.version))
            except (LogNotFound, RecordNotFound):
                pass  # This deletion or another has removed the log.

    async def _clear(self, contest: Contest, error: BaseException) -> None:
        """Delete the record of a contest after `LogNotFound`: those who waited have created it again. Best effort."""
        if not isinstance(error, LogNotFound):
            return
        with contextlib.suppress(BookKeeperError):
            # In this order: the version changes with the first turn in another log of that name.
            queue, version = await contest.queue()
            try:
                await self._parts()
            except LogNotFound:
                if version and not queue.participants:
                    await self._driver.delete_record(contest.record, version)

    def _leader_contest(self) -> Contest:
        return Contest(self._runtime, self._driver, LEADERS + self.name, f"the lead of log {self.name}")

    def _consumer_contest(self, name: str) -> Contest:
        record = f"{CONSUMERS}{self.name}/{name}"
        return Contest(self._runtime, self._driver, record, f"consumer {name} of log {self.name}")

    async def _parts(self) -> LogContext:
        """Return the context with a fresh list. Raises `LogNotFound`."""
        records = ManifestLoop(self._runtime, self._driver, self.name)
        manifest = await repeated(self._runtime, records.refresh)
        if manifest.is_deleting:
            raise LogNotFound(f"log {self.name} is being deleted: `delete` it again if that stopped half-way")
        return self._parts_of(records)

    def _parts_of(self, records: ManifestLoop) -> LogContext:
        cursors = LogCursors(self._runtime, self._driver, records)
        times = TimeIndex(self._runtime, self._driver, records)
        return LogContext(self._client, self._runtime, records, cursors, times, self._password)


def _grace_ms(name: str, grace: float) -> int:
    """Return the ms of a grace in seconds, which may be 0. Raises `InvalidArgument`."""
    return (milliseconds(name, grace) or 0) if grace else 0


async def compactor_of(log: Log, tombstone_age: float = TOMBSTONE_S) -> Compactor:
    """Return the single steps of `Log.compact`, for a job that finds the last records itself."""
    return Compactor(await log._parts(), log._driver, milliseconds("tombstone_age", tombstone_age) or 0)
