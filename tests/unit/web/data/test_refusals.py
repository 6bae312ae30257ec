"""Bad input to logs, by each way in: one sentence with the way out, and the log and its other users go on."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from tests.unit.web.data.conftest import ONE, Site

from bookies.admin.commands.log import VERBS
from bookies.admin.logs import namespace_log
from bookies.admin.shared.common import OnCluster, Session
from bookies.admin.shared.nouns import parser_of
from bookies.admin.shared.usage import UsageError
from bookies.client.client import Client
from bookies.client.log import Log
from bookies.client.log.log_writer import LogWriter
from bookies.distributedlog import Dlog, DlogWriter, Namespace
from bookies.distributedlog.store import RecordTree
from bookies.encoding.envelope import Record
from bookies.encoding.record_sets import pack_sets
from bookies.errors import BookKeeperError, LogFenced
from bookies.protocol.log import Position

LOST = Position(999, 0)
LARGE = bytes(6 << 20)
BEGINS = r"which begins at \d+:0"


class Scene:
    """A cluster with logs of each kind, led by one process, and a second process beside it."""

    def __init__(self, site: Site, client: Client, other: Client) -> None:
        self.site, self.client, self.other = site, client, other
        self.logs: dict[str, Log] = {}
        self.writers: dict[str, LogWriter] = {}
        self.namespace = Namespace(other._runtime, RecordTree(other._driver, "dl"), "/dl", other)
        self.dlog: Dlog = self.namespace.log("dl")

    async def start(self) -> None:
        """Create the logs. The first ledger of each is truncated; `sets` has a damaged set."""
        for name in ("raw", "envelope", "sets"):
            self.logs[name] = log = self.client.log(name)
            await log.create(record_format=name, **ONE)
            self.writers[name] = writer = await log.lead()
            self.truncated = await writer.append(b"old")
            for _ in range(3):
                await writer.roll()
                position = await writer.append(b"kept")
            await log.truncate(position)
        damaged = bytearray(pack_sets([Record(b"a"), Record(b"b")], 0, 7)[0][1])
        damaged[-3] = 0x7F  # of a size
        self.damaged = await self.writers["sets"].append_entries([bytes(damaged)])
        for value in (b"after", b"end"):
            await self.writers["sets"].append(value)
        self.dlog_writer: DlogWriter = await self.dlog.lead(**ONE)
        await self.dlog_writer.append(b"old", txid=7)
        assert (await self.call("PUT", "/logs/web", {**ONE, "record_format": "raw"})).status == 201
        assert (await self.call("POST", "/logs/web/entries", b"old")).status == 201
        assert (await self.call("PUT", "/logs/numbers", ONE)).status == 201

    async def call(self, method: str, target: str, body: object = None, **headers: str) -> Any:
        return await self.site.call(method, target, body, **headers)

    async def goes_on(self) -> None:
        """Append to each log and read it by the other process."""
        for name in self.logs:
            try:
                position = await self.writers[name].append(b"next")
            except LogFenced:  # Another process had the lead.
                self.writers[name] = await self.logs[name].lead()
                position = await self.writers[name].append(b"next")
            async with self.other.log(name).open() as reader:
                assert (await anext(reader.tail(position).records())).value == b"next"
        if self.dlog_writer._error is not None:
            self.dlog_writer = await self.dlog.lead(**ONE)
        dlsn = await self.dlog_writer.append(b"next", txid=self.dlog_writer.last_txid)
        await self.dlog_writer.flush()
        async with self.dlog.open() as reader:
            assert [record.payload async for record in reader.read(dlsn)] == [b"next"]
        assert (await self.call("POST", "/logs/web/entries", b"next")).status == 201

    async def bk(self, *words: str) -> object:
        """Run a verb of `bk log` within the session of the other process."""
        arguments = parser_of("log").parse_args(list(words))
        if "--namespace" in words:
            return await getattr(namespace_log, words[0])(self.namespace, arguments)
        run = next(verb.run for verb in VERBS if verb.name == f"log {words[0]}")
        assert isinstance(run, OnCluster)
        return await run.within(Session(self.other._runtime, self.other, self.other._driver), arguments)


async def each(iteration: Any) -> list[Any]:
    return [item async for item in iteration]


Act = Callable[[Scene], Awaitable[object]]


class Row(NamedTuple):
    """What is done, and the sentence that answers it. `status`: of the gateway's answer."""

    act: Act
    sentence: str
    status: int | None = None


# -- our logs, by the client -------------------------------------------------------------------------------------------


def appended(name: str, *payload: Any, **options: Any) -> Act:
    return lambda scene: scene.writers[name].append(*payload, **options)


def on_log(act: Callable[[Log], Awaitable[object]], name: str = "envelope") -> Act:
    return lambda scene: act(scene.client.log(name))


async def read_truncated(scene: Scene) -> None:
    async with scene.logs["sets"].open() as reader:
        await each(reader.read(scene.truncated))


async def read_damaged(scene: Scene) -> None:
    """The iteration goes on after the damaged set."""
    async with scene.other.log("sets").open() as reader:
        records = reader.read().records()
        assert (await anext(records)).value == b"kept"
        try:
            await anext(records)
        finally:
            assert (await anext(records)).value == b"after"


async def read_damaged_set(scene: Scene) -> None:
    async with scene.other.log("sets").open() as reader:
        async for _, found in reader.read(scene.damaged).sets():
            found.values()


async def append_of_a_stopped_leader(scene: Scene) -> None:
    async with scene.other.log("envelope").lead() as second:
        await second.append(b"other")
        await scene.writers["envelope"].append(b"late")


async def lease_that_expires_during_an_append(scene: Scene) -> None:
    first = await scene.client.log("raw").lead(wait=True)
    for task in asyncio.all_tasks():
        if task.get_name().startswith("keep the lead"):
            task.cancel()  # as if the process was suspended
    async with scene.other.log("raw").lead(wait=True):
        await first.append(b"late")


async def commit_of_a_replaced_consumer(scene: Scene) -> None:
    first = await scene.client.log("raw").consumer("billing", ttl=2)
    for task in asyncio.all_tasks():
        if task.get_name().startswith("keep consumer"):
            task.cancel()
    async with scene.other.log("raw").consumer("billing", ttl=2):
        first.lease.check()


CLIENT = {
    "key in a raw log": Row(appended("raw", b"v", key=b"k"), "log raw keeps raw values, without key: append the value"),
    "large value": Row(appended("raw", LARGE), r"log raw: an entry of [\d,]+ bytes exceeds the limit .*; split it"),
    "large record": Row(appended("envelope", LARGE), r"log envelope: an entry of [\d,]+ bytes exceeds .*; split it"),
    "large record of a set": Row(appended("sets", LARGE), r"log sets: an entry of [\d,]+ bytes exceeds .*; split it"),
    "time NaN": Row(appended("envelope", b"v", timestamp=math.nan), "timestamp=nan: must be a number of seconds"),
    "time too far": Row(
        appended("envelope", b"v", timestamp=1e30), r"timestamp=1e\+30: must be a number of seconds since 1970"
    ),
    "wrong last": Row(appended("raw", b"v", expected_last=LOST), "the last entry of log raw is .* decide again"),
    "gap": Row(lambda scene: _numbered(scene), "the last number of writer p is 1, so 7 leaves a gap: append 2"),
    "at NaN": Row(on_log(lambda log: log.at(math.nan)), "time=nan: must be a datetime with a time zone, or seconds"),
    "at infinity": Row(on_log(lambda log: log.at(math.inf)), "time=inf: must be a datetime with a time zone"),
    "truncated position": Row(read_truncated, r"position \d+:0 is not in log sets, which begins at \d+:0"),
    "cursor at a lost position": Row(
        on_log(lambda log: log.move_cursor("c", LOST)), f"log envelope: position 999:0 is not in the log, {BEGINS}"
    ),
    "unknown cursor": Row(
        on_log(lambda log: log.move_cursor("c", LOST, expected=LOST)), "log envelope: cursor c is nowhere: .* not exist"
    ),
    "truncation to a lost position": Row(
        on_log(lambda log: log.truncate(LOST)), f"log envelope: position 999:0 is not in the log, {BEGINS}"
    ),
    "truncation after the end": Row(
        lambda scene: scene.logs["raw"].truncate(Position(scene.writers["raw"].ledger_id, 99)),
        r"log raw: position \d+:99 is after .*: give \d+:[01] at most",
    ),
    "consumer at a lost position": Row(
        on_log(lambda log: log.consumer("c", start=LOST).begin()), "log envelope: position 999:0 is not in the log"
    ),
    "damaged set": Row(
        read_damaged, r"log sets has no records at ledger \d+, entry 1: .* damaged.*; read on from \d+:2"
    ),
    "values of a damaged set": Row(
        read_damaged_set, r"set of 2 records is damaged: .* of log sets: read on from \d+:2"
    ),
    "two leaders": Row(
        append_of_a_stopped_leader, "another process is taking log envelope over: .*; take the lead again"
    ),
    "lease of a leader": Row(lease_that_expires_during_an_append, "another process .* log raw.*; take the lead again"),
    "lease of a consumer": Row(
        commit_of_a_replaced_consumer, "consumer billing of log raw was not renewed .* enter again"
    ),
    "missing log": Row(on_log(lambda log: log.lead().begin(), "missing"), "there is no log missing: create it first"),
    "age NaN": Row(on_log(lambda log: each(log.reap(orphan_grace=math.nan))), "orphan_grace=nan: must be a number"),
}


async def _numbered(scene: Scene) -> None:
    await scene.writers["envelope"].append(b"v", producer="p", sequence=1)
    await scene.writers["envelope"].append(b"v", producer="p", sequence=7)


# -- logs of DistributedLog --------------------------------------------------------------------------------------------


def dlog_appended(*payload: Any, **options: Any) -> Act:
    return lambda scene: scene.dlog_writer.append(*payload, **options)


async def greatest_txid(scene: Scene) -> None:
    """Equal ids may follow."""
    await scene.dlog_writer.append(b"v", txid=(1 << 63) - 2)
    await scene.dlog_writer.append(b"v", txid=(1 << 63) - 2)
    await scene.dlog_writer.append(b"v")


async def read_damaged_entry(scene: Scene) -> None:
    """Records before and after it are read."""
    writer = scene.dlog_writer
    assert writer._open is not None
    await writer._open.ledger.append(b"bad")
    writer._open.next_entry += 1
    last = await writer.append(b"last")
    await writer.flush()
    async with scene.dlog.open() as reader:
        records = reader.read()
        assert (await anext(records)).payload == b"old"
        try:
            await anext(records)
        finally:
            assert (await anext(records)).position == last


async def append_beside_another_writer(scene: Scene) -> None:
    async with scene.namespace.log("dl").lead(**ONE) as second:
        await second.append(b"other")
        await scene.dlog_writer.append(b"late")


DLOG = {
    "decreasing id": Row(dlog_appended(b"v", txid=6), "txid=6 is less than 7, .* record of log dl: give 7 or more"),
    "large record": Row(dlog_appended(bytes(2 << 20)), "log dl: a record of 2,097,152 bytes exceeds .*; split it"),
    "text": Row(dlog_appended("v"), "a payload is bytes, bytearray or memoryview, not str"),
    "text in a set": Row(lambda scene: scene.dlog_writer.append_set(["v"]), "a payload is bytes, .* not str"),
    "greatest id": Row(greatest_txid, r"txid=\d+: must be less than [\d,]+ in log dl, whose last one is [\d,]+"),
    "damaged entry": Row(read_damaged_entry, "log dl: segment 1: the entry has 3 bytes, .*; read on from 1:3:0"),
    "position as text": Row(lambda scene: scene.dlog.truncate("1:1:1"), "before='1:1:1': must be a Dlsn.*parse_dlsn"),
    "cursor as text": Row(lambda scene: scene.dlog.move_cursor("c", "1"), "position='1': must be a Dlsn"),
    "age NaN": Row(lambda scene: scene.dlog.apply_retention(max_age=math.nan), "max_age=nan: must be a number"),
    "delay NaN": Row(lambda scene: _led(scene, batch_delay=math.nan), "batch_delay=nan: must be a number of seconds"),
    "age as text": Row(lambda scene: _led(scene, roll_age="1d"), "roll_age='1d': must be a number of seconds"),
    "no age": Row(lambda scene: _led(scene, roll_age=0), "roll_age=0: must be a number of seconds above 0"),
    "two writers": Row(append_beside_another_writer, "another process is taking log dl over: .*; take the lead again"),
    "missing log": Row(
        lambda scene: scene.namespace.log("missing").find(1),
        "there is no log missing in namespace /dl: create it first",
    ),
}


async def _led(scene: Scene, **options: Any) -> None:
    await scene.dlog.lead(**options)


# -- the command -------------------------------------------------------------------------------------------------------


def bk(*words: str) -> Act:
    return lambda scene: scene.bk(*words)


NAMESPACE = ("--namespace", "x")
COMMAND = {
    "lost position": Row(bk("read", "raw", "--from", "999:0"), f"position 999:0 is not in log raw, {BEGINS}"),
    "no position": Row(bk("read", "raw", "--from", "x"), "'x' is no position in a log: give LEDGER:ENTRY"),
    "huge position": Row(bk("read", "raw", "--from", f"{10**30}:0"), "start.ledger_id=10+: must be at most"),
    "time NaN": Row(bk("read", "raw", "--since", "nan"), "--since nan: must be a duration before now"),
    "year 10000": Row(bk("read", "raw", "--since", "10000-01-01"), "--since 10000-01-01: must be a duration before"),
    "damaged set": Row(bk("read", "sets"), r"log sets has no records at ledger \d+, entry 1: .*; read on from \d+:2"),
    "truncation": Row(
        bk("truncate", "raw", "--before", "999:0"), f"log raw: position 999:0 is not in the log, {BEGINS}"
    ),
    "cursor": Row(bk("cursors", "raw", "--move", "c=999:0"), "log raw: position 999:0 is not in the log"),
    "age NaN": Row(bk("reap", "raw", "--orphan-grace", "nan"), "orphan_grace=nan: must be a number of seconds"),
    "missing log": Row(bk("show", "missing"), "there is no log missing: create it first"),
    "id in other digits": Row(bk("read", "dl", "--from", "txid:²", *NAMESPACE), "'txid:²' is not a position: expected"),
    "huge id": Row(bk("read", "dl", "--from", f"txid:{10**30}", *NAMESPACE), "txid=10+: must be at most"),
    "no address": Row(
        bk("truncate", "dl", "--before", "1", *NAMESPACE), "'1' is not a position: expected SEGMENT:ENTRY"
    ),
    "missing in the namespace": Row(bk("show", "missing", *NAMESPACE), "there is no log missing in namespace /dl"),
}


# -- the gateway -------------------------------------------------------------------------------------------------------


def http(method: str, target: str, body: object = None, **headers: str) -> Act:
    return lambda scene: scene.call(method, f"/logs/{target}", body, **headers)


LINES = {"content_type": "application/x-ndjson"}
NUMBERED = {"bk_writer": "p", "bk_sequence": "7"}


async def gap_over_http(scene: Scene) -> object:
    assert (await scene.call("POST", "/logs/numbers/entries", b"v", **{**NUMBERED, "bk_sequence": "1"})).status == 201
    return await scene.call("POST", "/logs/numbers/entries", b"v", **NUMBERED)


async def record_outside_of_an_entry(scene: Scene) -> object:
    answer = await scene.call("POST", "/logs/numbers/entries", b"v")
    return await scene.call("GET", f"/logs/numbers/entries/{answer.json['first']}:7")


async def damaged_over_http(scene: Scene) -> object:
    answer = await scene.call("GET", f"/logs/sets/entries?from={scene.damaged}")
    assert answer.headers["bk-next"] == str(scene.damaged.next)
    return answer


async def damaged_one_over_http(scene: Scene) -> object:
    return await scene.call("GET", f"/logs/sets/entries/{scene.damaged}")


GATEWAY = {
    "key": Row(http("POST", "web/entries", b'{"text":"v","key":"k"}', **LINES), "log web keeps raw values", 422),
    "time NaN": Row(http("POST", "web/entries", b'{"text":"v","time_ms":NaN}', **LINES), "NaN is not a finite", 400),
    "number without room": Row(http("POST", "web/entries", b"v", **NUMBERED), "log web keeps raw values", 422),
    "gap": Row(gap_over_http, "the last number of writer p is 1, so 7 leaves a gap: append 2", 409),
    "lost position": Row(http("GET", "web/entries?from=999:0"), f"position 999:0 is not in log web, {BEGINS}", 410),
    "no position": Row(http("GET", "web/entries?from=x"), "'x' is no position in a log: give LEDGER:ENTRY", 400),
    "year 10000": Row(http("GET", "web/entries?since=10000-01-01"), "since: '10000-01-01' is no time such as", 400),
    "unknown cursor": Row(http("GET", "web/cursors/c"), "log web has no cursor c: PUT creates it", 404),
    "cursor": Row(
        http("PUT", "web/cursors/c", {"position": "999:0"}), "log web: position 999:0 is not in the log", 410
    ),
    "moved cursor": Row(
        http("PUT", "web/cursors/c", {"position": "999:0"}, if_match='"1:1"'), "log web: cursor c is nowhere", 412
    ),
    "truncation": Row(
        http("POST", "web/truncate", {"before": "999:0"}), f"log web: position 999:0 is not in the log, {BEGINS}", 410
    ),
    "damaged set": Row(damaged_over_http, r"log sets has no records at .*; read on from \d+:2", 422),
    "one damaged set": Row(damaged_one_over_http, r"log sets has no records at .*; read on from \d+:2", 422),
    "record outside of an entry": Row(record_outside_of_an_entry, r"has 1 records: \d+:0:7 is not among them", 404),
    "missing log": Row(http("POST", "missing/entries", b"v"), "there is no log missing: create it first", 404),
}

TABLE = [
    pytest.param(row, id=f"{way}: {name}")
    for way, rows in (("client", CLIENT), ("DistributedLog", DLOG), ("bk", COMMAND), ("gateway", GATEWAY))
    for name, row in rows.items()
]


@pytest.mark.parametrize("row", TABLE)
def test_one_sentence_and_no_harm(serve: Callable[..., None], row: Row) -> None:
    async def body(site: Site) -> None:
        client, other = await site.client(), await site.client("client2")
        scene = Scene(site, client, other)
        await scene.start()
        if row.status is None:
            with pytest.raises((BookKeeperError, UsageError)) as raised:
                await row.act(scene)
            sentence = str(raised.value)
        else:
            answer: Any = await row.act(scene)
            assert answer.status == row.status
            assert answer.headers["content-type"] == "application/problem+json"
            sentence = json.loads(answer.body)["detail"]
        assert re.search(row.sentence, sentence), sentence
        assert "\n" not in sentence
        await scene.goes_on()
        for each_client in (client, other):
            await each_client.close()

    serve(body)
