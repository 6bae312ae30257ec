"""The steps of scenarios that do something: to the world, to messages, to participants, with ledgers."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import Any

from bookies.client.advanced import AdvancedLedgerWriter
from bookies.config import ClientConfig
from bookies.errors import EntryExists, Status
from bookies.kernels import Records, digest
from bookies.model import DigestType
from bookies.sim.disk import PROCESS_DIES, Loss
from bookies.sim.scenario_grammar import Given, parse_step, range_of, step
from bookies.sim.scenario_messages import Message, Rule
from bookies.sim.scenario_stage import PATIENCE_S, SETTLING_S, ScenarioFailure, Stage, host_of
from bookies.sim.workload import Story, payload_of
from bookies.wire.digest import mac_key, master_key

POWER_FAILS = Loss(survival=0.0)


# -- the world -----------------------------------------------------------------------------------------------------
@step("cluster BOOKIES", "the first step: start these bookies")
async def cluster(stage: Stage, given: Given) -> None:
    for name in given["bookies"]:
        stage.add_bookie(name)
    await stage.cluster.start()


@step("start BOOKIES", "start bookies: new ones, or again after a crash")
async def start(stage: Stage, given: Given) -> None:
    for name in given["bookies"]:
        if name not in stage.cluster.bookies:
            stage.add_bookie(name)
        if stage.bookie(name).is_up:
            raise ScenarioFailure(f"{name} is up")
        await stage.cluster.start_bookie(name)
        if not stage.bookie(name).is_up:
            raise ScenarioFailure(f"{name} could not start")


@step("client CLIENT OPTIONS", "settings of a client that is not started yet, as in `ClientConfig`")
async def client(stage: Stage, given: Given) -> None:
    if host_of(given["client"]) in stage.cluster.clients:
        raise ScenarioFailure(f"{given['client']} has been started")
    defaults = {each.name: each.default for each in dataclasses.fields(ClientConfig)}
    settings: dict[str, object] = {}
    for name, text in given["options"].items():
        if name not in defaults:
            raise ScenarioFailure(f"there is no setting {name}; expected one of {', '.join(defaults)}")
        settings[name] = _setting(defaults[name], text)
    stage.settings[given["client"]] = settings


def _setting(default: Any, text: str) -> object:
    """The text as a value of the default's type."""
    if isinstance(default, bool):
        return text == "yes"
    return int(text) if isinstance(default, int) else text


@step("wait SECONDS s", "let virtual time pass")
async def wait(stage: Stage, given: Given) -> None:
    await asyncio.sleep(given["seconds"])


@step("wait until EXPECTATION", "until what could be expected is so, 120 s at most")
async def wait_until(stage: Stage, given: Given) -> None:
    sentence, values = parse_step(f"expect {given['expectation']}")
    deadline = stage.loop.time() + PATIENCE_S
    while True:
        try:
            await sentence.perform(stage, values)
            return
        except ScenarioFailure:
            if stage.loop.time() > deadline:
                raise
        await asyncio.sleep(SETTLING_S / 4)


@step("allow INVARIANT", "what is done here breaks this promise, and may: data is destroyed, for example")
async def allow(stage: Stage, given: Given) -> None:
    stage.allowed.append(given["invariant"])


# -- messages ------------------------------------------------------------------------------------------------------
def _add_rule(stage: Stage, action: str, given: Given, *, is_once: bool = True, status: Status | None = None) -> None:
    stage.messages.rules.append(Rule(action, given["messages"], is_once, status))


@step("hold MESSAGES", "keep these messages from now on, until `release`; at least one of each peer has to come")
async def hold(stage: Stage, given: Given) -> None:
    _add_rule(stage, "hold", given, is_once=False)


@step("release MESSAGES", "deliver the held ones, at least one of each peer, and hold no more")
async def release(stage: Stage, given: Given) -> None:
    if missing := stage.messages.release(given["messages"]):
        raise ScenarioFailure(f"none is held of {', '.join(missing)}")


@step("release first MESSAGES", "deliver the oldest of the held ones, and go on holding")
async def release_first(stage: Stage, given: Given) -> None:
    if len(given["messages"].peers) > 1 or stage.messages.release(given["messages"], is_one=True):
        raise ScenarioFailure("none is held, or more than one peer is named")


@step("drop MESSAGES", "lose the held ones, and hold no more")
async def drop(stage: Stage, given: Given) -> None:
    if missing := stage.messages.release(given["messages"], is_lost=True):
        raise ScenarioFailure(f"none is held of {', '.join(missing)}")


@step("lose MESSAGES", "lose the next one of each peer; for the store: the client is told that the connection broke")
async def lose(stage: Stage, given: Given) -> None:
    _add_rule(stage, "lose", given)


@step("lose all MESSAGES", "lose each of them")
async def lose_all(stage: Stage, given: Given) -> None:
    _add_rule(stage, "lose", given, is_once=False)


@step("repeat MESSAGES", "deliver the next one of each peer twice")
async def repeat(stage: Stage, given: Given) -> None:
    _add_rule(stage, "repeat", given)


@step("spoil MESSAGES", "flip a bit at the end of the next one of each peer: of the payload, of a digest")
async def spoil(stage: Stage, given: Given) -> None:
    _add_rule(stage, "spoil", given)


@step("spoil all MESSAGES", "flip a bit at the end of each of them")
async def spoil_all(stage: Stage, given: Given) -> None:
    _add_rule(stage, "spoil", given, is_once=False)


@step("break at MESSAGES", "break the connection when the next one of each peer is sent; it is lost")
async def break_at(stage: Stage, given: Given) -> None:
    _add_rule(stage, "break", given)


@step("break at all MESSAGES", "break the connection whenever one of them is sent")
async def break_at_all(stage: Stage, given: Given) -> None:
    _add_rule(stage, "break", given, is_once=False)


@step("age MESSAGES", "the store's next answer to a read comes from a replica that lags behind by one version")
async def age(stage: Stage, given: Given) -> None:
    _add_rule(stage, "age", given)


@step("power fails when MESSAGES", "at the bookie, right after it has sent the next such answer")
async def power_fails_when(stage: Stage, given: Given) -> None:
    def fail(message: Message) -> None:
        stage.cluster.crash_bookie(message.peer, POWER_FAILS, is_silent=True)

    stage.messages.rules.append(Rule("call", given["messages"], is_once=True, then=fail))


def _answer(stage: Stage, given: Given, *, is_once: bool) -> None:
    if given["messages"].is_answer or given["status"] not in Status.__members__:
        raise ScenarioFailure(f"only requests are answered, with one of {', '.join(Status.__members__)}")
    _add_rule(stage, "answer", given, is_once=is_once, status=Status[given["status"]])


@step("answer MESSAGES with STATUS", "the next such request of each peer does not arrive, but is answered so")
async def answer(stage: Stage, given: Given) -> None:
    _answer(stage, given, is_once=True)


@step("answer all MESSAGES with STATUS", "each of them")
async def answer_all(stage: Stage, given: Given) -> None:
    _answer(stage, given, is_once=False)


@step("answer all MESSAGES with entry NUMBER", "each such read brings the valid bytes of another entry")
async def answer_with_entry(stage: Stage, given: Given) -> None:
    body = _body(stage, given["number"], given["number"] - 1)
    stage.messages.rules.append(Rule("answer", given["messages"], status=Status.OK, body=body))


# -- the network ---------------------------------------------------------------------------------------------------
@step("cut HOST HOSTS", "nothing passes between the first and the others, in both directions")
async def cut(stage: Stage, given: Given) -> None:
    for other in given["hosts"]:
        stage.cluster.network.block(host_of(given["host"]), host_of(other))
        stage.cluster.network.block(host_of(other), host_of(given["host"]))


@step("heal HOST HOSTS", "undo `cut`; what was sent meanwhile arrives now")
async def heal(stage: Stage, given: Given) -> None:
    for other in given["hosts"]:
        stage.cluster.network.unblock(host_of(given["host"]), host_of(other))
        stage.cluster.network.unblock(host_of(other), host_of(given["host"]))


@step("break HOST HOSTS", "break the connections between the first and the others; both sides learn of it")
async def break_connections(stage: Stage, given: Given) -> None:
    network = stage.cluster.network
    others = [host_of(other) for other in given["hosts"]]
    found = [each for each in network.connections(host_of(given["host"])) if each.outgoing.target.host in others]
    if not found:
        raise ScenarioFailure("there is no such connection")
    for transport in found:
        network.cut(transport)


# -- participants --------------------------------------------------------------------------------------------------
@step("crash CLIENT", "its process dies")
async def crash_client(stage: Stage, given: Given) -> None:
    stage.client(given["client"])
    stage.cluster.kill_client(host_of(given["client"]))
    stage.writers.pop(given["client"], None)
    stage.readers.pop(given["client"], None)


def _crash(stage: Stage, given: Given, loss: Loss, *, is_silent: bool) -> None:
    for name in given["bookies"]:
        if not stage.bookie(name).is_up:
            raise ScenarioFailure(f"{name} is down")
        stage.cluster.crash_bookie(name, loss, is_silent=is_silent)


@step("crash BOOKIES", "their processes die; what they wrote to files stays")
async def crash_bookies(stage: Stage, given: Given) -> None:
    _crash(stage, given, PROCESS_DIES, is_silent=False)


@step("power fails at BOOKIES", "what was not synced is lost; their peers learn nothing")
async def power_fails(stage: Stage, given: Given) -> None:
    _crash(stage, given, POWER_FAILS, is_silent=True)


@step("pause HOSTS", "their processes stop where they are; what arrives waits")
async def pause(stage: Stage, given: Given) -> None:
    for name in given["hosts"]:
        _participant(stage, name).pause()


@step("resume HOSTS", "their processes go on")
async def resume(stage: Stage, given: Given) -> None:
    for name in given["hosts"]:
        _participant(stage, name).resume()


def _participant(stage: Stage, name: str) -> Any:
    if name.startswith("b"):
        if not stage.bookie(name).is_up:
            raise ScenarioFailure(f"{name} is down")
        return stage.bookie(name).participant
    return stage.client(name).participant


@step("expire HOST", "the metadata store gives its session up")
async def expire(stage: Stage, given: Given) -> None:
    if not given["host"].startswith("b"):
        stage.client(given["host"])
    stage.cluster.expire_session(host_of(given["host"]))


# -- ledgers -------------------------------------------------------------------------------------------------------
def _flag(options: dict[str, str], name: str) -> bool:
    return options.get(name, "no") == "yes"


@step(
    "CLIENT create QUORUMS on BOOKIES [OPTIONS] [ENDING]",
    "create the ledger; password, digest, advanced=yes, deferred_sync=yes",
)
async def create(stage: Stage, given: Given) -> None:
    name, options = given["client"], given["options"]
    writing = await stage.connected(name)
    stage.prefer(name, given["bookies"])
    password = options.get("password", "").encode()
    ensemble, write_quorum, ack_quorum = given["quorums"]
    more: dict[str, Any] = {each: True for each in ("advanced", "deferred_sync") if _flag(options, each)}

    async def work() -> None:
        ledger = await writing.client.create(
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=options.get("digest", "crc32c"),
            password=password,
            **more,
        )
        story = Story(ledger.ledger_id, password, ack_quorum, writing.name)
        story.is_advanced = "advanced" in more
        stage.history.stories[ledger.ledger_id] = stage.story = story
        stage.writers[name] = ledger
        if "deferred_sync" in more:
            stage.deferred.append(ledger.ledger_id)

    await stage.perform(writing, f"{name} create", work(), given["ending"])


@step("CLIENT prefer BOOKIES", "whenever it may choose bookies: these first, the others after them by name")
async def prefer(stage: Stage, given: Given) -> None:
    await stage.connected(given["client"])
    stage.prefer(given["client"], given["bookies"])


@step(
    "CLIENT append ENTRIES [ENDING]",
    "append one after the other; with `&` all at once. The entries have to get these ids",
)
async def append(stage: Stage, given: Given) -> None:
    name, story = given["client"], stage.ledger
    ledger, client = stage.writer(name), stage.client(given["client"])

    def work(entry_id: int) -> Coroutine[Any, Any, None]:
        return _add(stage, story, ledger.append(payload_of(story.ledger_id, entry_id)), entry_id)

    for entry_id in given["entries"]:
        await stage.perform(client, f"{name} append {entry_id}", work(entry_id), given["ending"])


async def _add(stage: Stage, story: Story, adding: Awaitable[int], entry_id: int) -> None:
    """Wait for an entry. With deferred sync it counts as confirmed only once it was forced."""
    story.started = max(story.started, entry_id + 1)
    try:
        answered = await adding
    except EntryExists:
        raise
    except BaseException:
        story.is_over = True
        raise
    if story.ledger_id not in stage.deferred:
        stage.history.confirmed(story, entry_id, entry_id, answered)
    elif answered != entry_id:
        raise ScenarioFailure(f"the append of entry {entry_id} was acknowledged as {answered}")


@step("CLIENT write ENTRIES [ENDING]", "add entries under these ids, to an advanced ledger")
async def write(stage: Stage, given: Given) -> None:
    await _write(stage, given, "write")


@step("CLIENT write again ENTRIES [ENDING]", "the same, of ids that were written before")
async def write_again(stage: Stage, given: Given) -> None:
    await _write(stage, given, "write again")


async def _write(stage: Stage, given: Given, verb: str) -> None:
    name, story = given["client"], stage.ledger
    ledger, client = stage.writer(name), stage.client(name)
    if not isinstance(ledger, AdvancedLedgerWriter):
        raise ScenarioFailure("the ledger was not created with advanced=yes")
    for entry_id in given["entries"]:
        adding = _add(stage, story, ledger.write(entry_id, payload_of(story.ledger_id, entry_id)), entry_id)
        await stage.perform(client, f"{name} {verb} {entry_id}", adding, given["ending"])


@step("CLIENT force [ENDING]", "make durable what was acknowledged with deferred sync")
async def force(stage: Stage, given: Given) -> None:
    name, story = given["client"], stage.ledger
    ledger = stage.writer(name)

    async def work() -> None:
        last = await ledger.force()
        if last >= story.confirmed:
            stage.history.confirmed(story, story.confirmed, last, last)

    await stage.perform(stage.client(name), f"{name} force", work(), given["ending"])


@step("CLIENT seal [ENDING]", "end the ledger behind everything appended")
async def seal(stage: Stage, given: Given) -> None:
    ledger, client, story = stage.writer(given["client"]), stage.client(given["client"]), stage.ledger

    async def work() -> None:
        await ledger.seal()
        story.is_over = True
        stage.history.ended(story, client.name, ledger.last_add_confirmed, ledger.length)

    await stage.perform(client, f"{given['client']} seal", work(), given["ending"])


@step("CLIENT seal twice", "two calls at once; both have to succeed")
async def seal_twice(stage: Stage, given: Given) -> None:
    ledger, client, story = stage.writer(given["client"]), stage.client(given["client"]), stage.ledger

    async def work() -> None:
        ends = await asyncio.gather(ledger.seal(), ledger.seal())
        story.is_over = True
        for end in ends:
            stage.history.ended(story, client.name, end, ledger.length)

    await stage.perform(client, f"{given['client']} seal twice", work(), None)


@step("CLIENT close [ENDING]", "let go of the ledger without an end")
async def close(stage: Stage, given: Given) -> None:
    ledger, client, story = stage.writer(given["client"]), stage.client(given["client"]), stage.ledger

    async def work() -> None:
        story.is_over = True
        await ledger.close()

    await stage.perform(client, f"{given['client']} close", work(), given["ending"])


@step("CLIENT delete [ENDING]", "delete the ledger's record; no entry of it is promised any more")
async def delete(stage: Stage, given: Given) -> None:
    client, story = await stage.connected(given["client"]), stage.ledger
    stage.history.stories.pop(story.ledger_id, None)
    await stage.perform(client, f"{given['client']} delete", client.client.delete(story.ledger_id), given["ending"])


def _password(stage: Stage, given: Given) -> bytes:
    text = given["options"].get("password")
    return stage.ledger.password if text is None else text.encode()


@step("CLIENT recover [OPTIONS] [ENDING]", "open with recovery")
async def recover(stage: Stage, given: Given) -> None:
    name, story, password = given["client"], stage.ledger, _password(stage, given)
    client = await stage.connected(name)

    async def work() -> None:
        acknowledged = story.confirmed
        ledger = await client.client.recover(story.ledger_id, password=password)
        stage.readers[name] = ledger
        if not ledger.metadata.is_closed or ledger.last_add_confirmed < acknowledged - 1:
            stage.history.violated("I-26", f"recovered to {ledger.metadata!r}, {acknowledged} were acknowledged")
        stage.history.ended(story, client.name, ledger.metadata.last_entry_id, ledger.metadata.length)

    await stage.perform(client, f"{name} recover", work(), given["ending"])


@step("CLIENT open [OPTIONS] [ENDING]", "open for reading, without recovery")
async def open_ledger(stage: Stage, given: Given) -> None:
    name, story, password = given["client"], stage.ledger, _password(stage, given)
    client = await stage.connected(name)

    async def work() -> None:
        stage.readers[name] = await client.client.open(story.ledger_id, password=password)

    await stage.perform(client, f"{name} open", work(), given["ending"])


def _reading(stage: Stage, name: str, entries: Any, first: int, last: int | None) -> Coroutine[Any, Any, None]:
    """Read all of `entries`, which are to be first..last, or to the end when that is None."""
    story, client = stage.ledger, stage.client(name)

    async def work() -> None:
        expected = first
        async for entry in entries:
            if entry.id != expected:
                raise ScenarioFailure(f"{name} was given entry {entry.id} instead of {expected}")
            stage.history.read(story, client.name, entry)
            stage.shown[name] = max(stage.shown.get(name, -1), entry.id)
            expected += 1
        if last is not None and expected != last + 1:
            raise ScenarioFailure(f"{name} was given entries up to {expected - 1}")

    return work()


@step("CLIENT read ENTRIES [ENDING]", "read exactly these entries")
async def read(stage: Stage, given: Given) -> None:
    name, entries = given["client"], given["entries"]
    ledger, client = stage.reader(name), stage.client(name)
    reading = _reading(stage, name, ledger.read(entries[0], entries[-1]), entries[0], entries[-1])
    text = f"{name} read {entries[0]}..{entries[-1]}"
    await stage.perform(client, text, reading, given["ending"])


@step("CLIENT read all [ENDING]", "read what is confirmed, or the whole of a ledger that has ended")
async def read_all(stage: Stage, given: Given) -> None:
    name = given["client"]
    ledger, client = stage.reader(name), stage.client(name)
    reading = _reading(stage, name, ledger.read(0), 0, None)
    await stage.perform(client, f"{name} read all", reading, given["ending"])


@step("CLIENT tail NUMBER [ENDING]", "read from this entry on, waiting for more, until the ledger has ended")
async def tail(stage: Stage, given: Given) -> None:
    name = given["client"]
    ledger, client = stage.reader(name), stage.client(name)
    reading = _reading(stage, name, ledger.tail(given["number"]), given["number"], None)
    await stage.perform(client, f"{name} tail {given['number']}", reading, given["ending"])


@step("CLIENT ask [ENDING]", "ask the bookies for the last add confirmed")
async def ask(stage: Stage, given: Given) -> None:
    ledger, client = stage.reader(given["client"]), stage.client(given["client"])

    async def work() -> None:
        await ledger.read_last_add_confirmed()

    await stage.perform(client, f"{given['client']} ask", work(), given["ending"])


@step(
    "plant entry NUMBER lac NUMBER:lac on BOOKIES", "a replica as another client left it, with this LAC in its header"
)
async def plant(stage: Stage, given: Given) -> None:
    _plant(stage, given["bookies"], given["number"], given["lac"])


def _plant(stage: Stage, bookies: list[str], entry_id: int, last_add_confirmed: int) -> None:
    story = stage.ledger
    body = _body(stage, entry_id, last_add_confirmed)
    story.started = max(story.started, entry_id + 1)
    for name in bookies:
        bookie = stage.bookie(name)
        if bookie.server is None or bookie.participant is None:
            raise ScenarioFailure(f"{name} is down")
        add = partial(bookie.server.store.add, is_recovery=True, is_deferred_sync=False, done=_ignore)
        where = range(entry_id, entry_id + 1)
        key = master_key(story.password)
        bookie.participant.call(add, story.ledger_id, key, where, Records.of([body]), last_add_confirmed)


def _body(stage: Stage, entry_id: int, last_add_confirmed: int) -> bytes:
    """An entry of the ledger as its writer would have packaged it."""
    story, record = stage.ledger, stage.record
    assert record is not None
    payload = payload_of(story.ledger_id, entry_id)
    head = struct.pack(">qqqq", story.ledger_id, entry_id, last_add_confirmed, story.length_up_to(entry_id))
    kind = record.digest_type or DigestType.CRC32C
    return b"".join((head, digest(kind, mac_key(story.password), head, payload), payload))


def _ignore(error: BaseException | None) -> None:
    """Whether a replica could be planted shows where it is looked for."""


# -- administration ------------------------------------------------------------------------------------------------
@step("CLIENT check [ENDING]", "look at every replica of the ledger; all have to be there")
async def check(stage: Stage, given: Given) -> None:
    name, story = given["client"], stage.ledger
    client = await stage.connected(name)

    async def work() -> None:
        found = await client.client.administration().check_ledger(story.ledger_id, percentage=100)
        if not found.is_ok:
            raise ScenarioFailure(f"not all is there: {found.fragments}")

    await stage.perform(client, f"{name} check", work(), given["ending"])


@step(
    "CLIENT replicate fragment NUMBER of BOOKIE [ENDING]", "copy what the bookie holds of the fragment to another one"
)
async def replicate_fragment(stage: Stage, given: Given) -> None:
    name, story, bookie = given["client"], stage.ledger, given["bookie"]
    client = await stage.connected(name)

    async def work() -> None:
        administration = client.client.administration()
        found = await administration.check_ledger(story.ledger_id)
        (fragment,) = [each.fragment for each in found.fragments if each.fragment.first == given["number"]]
        await administration.replicate_fragment(fragment, [fragment.ensemble.index(bookie)], exclude=[bookie])

    await stage.perform(client, f"{name} replicate fragment {given['number']} of {bookie}", work(), given["ending"])


@step("CLIENT replace BOOKIES [ENDING]", "copy all that these bookies hold of the ledger to others")
async def replace_bookies(stage: Stage, given: Given) -> None:
    name, story, bookies = given["client"], stage.ledger, given["bookies"]
    client = await stage.connected(name)

    async def work() -> None:
        await client.client.administration().recover_bookies(bookies, ledger_id=story.ledger_id)

    await stage.perform(client, f"{name} replace {' '.join(bookies)}", work(), given["ending"])


# -- what was begun ------------------------------------------------------------------------------------------------
@step("await CLIENT OPERATION [ENDING]", "what was begun with `&` ends now, well or as `fails ERROR`")
async def await_operation(stage: Stage, given: Given) -> None:
    operations = [stage.operations.get(text) for text in texts_of(given["client"], given["operation"])]
    found = [each for each in operations if each is not None]
    if len(found) < len(operations):
        raise ScenarioFailure(f"not all of it was begun with `&`; begun were: {', '.join(stage.operations)}")
    await stage.finish(found, given["ending"])


def texts_of(client: str, operation: str) -> list[str]:
    """The operations meant: appends are one for each entry."""
    verb, _, rest = operation.partition(" ")
    if verb in ("append", "write") and rest:
        return [f"{client} {verb} {entry_id}" for entry_id in range_of(rest)]
    if verb == "read" and rest != "all":
        entries = range_of(rest)
        return [f"{client} read {entries[0]}..{entries[-1]}"]
    return [f"{client} {operation}"]
