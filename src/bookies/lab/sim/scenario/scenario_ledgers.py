"""Scenario steps in which a client works with the ledger: write, recover, read, administer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from bookies.client.write import AdvancedLedgerWriter
from bookies.errors import EntryExists
from bookies.lab.sim.checkers import Story
from bookies.lab.sim.scenario.scenario_failure import ScenarioFailure
from bookies.lab.sim.scenario.scenario_grammar import Given, range_of, step
from bookies.lab.sim.scenario.scenario_stage import Stage


# -- ledgers -------------------------------------------------------------------------------------------------------
def _flag(options: dict[str, str], name: str) -> bool:
    return options.get(name, "no") == "yes"


@step(
    "CLIENT create QUORUMS on BOOKIES [OPTIONS] [ENDING]",
    "creates the ledger; password, digest, advanced=yes, deferred_sync=yes",
)
async def create(stage: Stage, given: Given) -> None:
    name, options = given["client"], given["options"]
    writing = await stage.connected(name)
    stage.prefer(name, given["bookies"])
    password = options.get("password", "").encode()
    ensemble, write_quorum, ack_quorum = given["quorums"]
    flags: dict[str, Any] = {name: True for name in ("advanced", "deferred_sync") if _flag(options, name)}

    async def work() -> None:
        ledger = await writing.client.create(
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=options.get("digest", "crc32c"),
            password=password,
            **flags,
        )
        story = Story(ledger.ledger_id, password, ack_quorum, writing.name)
        story.is_advanced = "advanced" in flags
        stage.history.stories[ledger.ledger_id] = stage.story = story
        stage.writers[name] = ledger
        if "deferred_sync" in flags:
            stage.deferred.append(ledger.ledger_id)

    await stage.perform(writing, f"{name} create", work(), given["ending"])


@step("CLIENT prefer BOOKIES", "whenever it may choose bookies: these first, then the others by name")
async def prefer(stage: Stage, given: Given) -> None:
    await stage.connected(given["client"])
    stage.prefer(given["client"], given["bookies"])


@step(
    "CLIENT append ENTRIES [ENDING]",
    "appends one entry after the other; with `&` all at once. The entries must get these ids",
)
async def append(stage: Stage, given: Given) -> None:
    name, story = given["client"], stage.ledger
    ledger, client = stage.writer(name), stage.client(given["client"])

    def work(entry_id: int) -> Coroutine[Any, Any, None]:
        return _add(stage, story, ledger.append, (story.payload(entry_id),), entry_id)

    for entry_id in given["entries"]:
        await stage.perform(client, f"{name} append {entry_id}", work(entry_id), given["ending"])


async def _add(
    stage: Stage, story: Story, add: Callable[..., Awaitable[int]], arguments: tuple[object, ...], entry_id: int
) -> None:
    """Add an entry and wait for it. With deferred sync it counts as confirmed only after a force."""
    story.started = max(story.started, entry_id + 1)
    try:
        answered = await add(*arguments)
    except EntryExists:
        raise
    except BaseException:
        story.is_over = True
        raise
    if story.ledger_id not in stage.deferred:
        stage.history.confirmed(story, entry_id, entry_id, answered)
    elif answered != entry_id:
        raise ScenarioFailure(f"the append of entry {entry_id} was acknowledged as {answered}")


@step("CLIENT write ENTRIES [ENDING]", "adds entries under these ids to an advanced ledger")
async def write(stage: Stage, given: Given) -> None:
    await _write(stage, given, "write")


@step("CLIENT write again ENTRIES [ENDING]", "the same, with ids that were written before")
async def write_again(stage: Stage, given: Given) -> None:
    await _write(stage, given, "write again")


async def _write(stage: Stage, given: Given, verb: str) -> None:
    name, story = given["client"], stage.ledger
    ledger, client = stage.writer(name), stage.client(name)
    if not isinstance(ledger, AdvancedLedgerWriter):
        raise ScenarioFailure("the ledger was not created with advanced=yes")
    for entry_id in given["entries"]:
        adding = _add(stage, story, ledger.write, (entry_id, story.payload(entry_id)), entry_id)
        await stage.perform(client, f"{name} {verb} {entry_id}", adding, given["ending"])


@step("CLIENT force [ENDING]", "makes durable what was acknowledged with deferred sync")
async def force(stage: Stage, given: Given) -> None:
    name, story = given["client"], stage.ledger
    ledger = stage.writer(name)

    async def work() -> None:
        last = await ledger.force()
        if last >= story.confirmed:
            stage.history.confirmed(story, story.confirmed, last, last)

    await stage.perform(stage.client(name), f"{name} force", work(), given["ending"])


@step("CLIENT seal [ENDING]", "ends the ledger after all appended entries")
async def seal(stage: Stage, given: Given) -> None:
    await _seal(stage, given, "seal", force=True)


@step("CLIENT seal without force [ENDING]", "ends the ledger after the entries that were forced before")
async def seal_without_force(stage: Stage, given: Given) -> None:
    await _seal(stage, given, "seal without force", force=False)


async def _seal(stage: Stage, given: Given, verb: str, *, force: bool) -> None:
    ledger, client, story = stage.writer(given["client"]), stage.client(given["client"]), stage.ledger

    async def work() -> None:
        await ledger.seal(force=force)
        story.is_over = True
        stage.history.ended(story, client.name, ledger.last_add_confirmed, ledger.length)

    await stage.perform(client, f"{given['client']} {verb}", work(), given["ending"])


@step("CLIENT seal twice", "two calls at once; both must succeed")
async def seal_twice(stage: Stage, given: Given) -> None:
    ledger, client, story = stage.writer(given["client"]), stage.client(given["client"]), stage.ledger

    async def work() -> None:
        ends = await asyncio.gather(ledger.seal(), ledger.seal())
        story.is_over = True
        for end in ends:
            stage.history.ended(story, client.name, end, ledger.length)

    await stage.perform(client, f"{given['client']} seal twice", work(), None)


@step("CLIENT close [ENDING]", "releases the ledger without an end")
async def close(stage: Stage, given: Given) -> None:
    ledger, client, story = stage.writer(given["client"]), stage.client(given["client"]), stage.ledger

    async def work() -> None:
        story.is_over = True
        await ledger.close()

    await stage.perform(client, f"{given['client']} close", work(), given["ending"])


@step("CLIENT leave", "ends the client in an orderly way; its operations end with it")
async def leave(stage: Stage, given: Given) -> None:
    client = stage.client(given["client"])
    await stage.perform(client, f"{given['client']} leave", client.client.close(), None)


@step("CLIENT delete [ENDING]", "deletes the ledger's record; its entries carry no promise any more")
async def delete(stage: Stage, given: Given) -> None:
    client, story = await stage.connected(given["client"]), stage.ledger
    stage.history.stories.pop(story.ledger_id, None)
    await stage.perform(client, f"{given['client']} delete", client.client.delete(story.ledger_id), given["ending"])


def _password(stage: Stage, given: Given) -> bytes:
    text = given["options"].get("password")
    return stage.ledger.password if text is None else text.encode()


@step("CLIENT recover [OPTIONS] [ENDING]", "opens with recovery")
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


@step("CLIENT open [OPTIONS] [ENDING]", "opens for reading, without recovery")
async def open_ledger(stage: Stage, given: Given) -> None:
    name, story, password = given["client"], stage.ledger, _password(stage, given)
    client = await stage.connected(name)

    async def work() -> None:
        stage.readers[name] = await client.client.open(story.ledger_id, password=password)

    await stage.perform(client, f"{name} open", work(), given["ending"])


def _reading(stage: Stage, name: str, entries: Any, first: int, last: int | None) -> Coroutine[Any, Any, None]:
    """Read all of `entries` and check that they are first..last. `last`: None: up to the end."""
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


@step("CLIENT read ENTRIES [ENDING]", "reads exactly these entries")
async def read(stage: Stage, given: Given) -> None:
    name, entries = given["client"], given["entries"]
    ledger, client = stage.reader(name), stage.client(name)
    reading = _reading(stage, name, ledger.read(entries[0], entries[-1]), entries[0], entries[-1])
    text = f"{name} read {entries[0]}..{entries[-1]}"
    await stage.perform(client, text, reading, given["ending"])


@step("CLIENT read all [ENDING]", "reads the confirmed entries, or the whole of a closed ledger")
async def read_all(stage: Stage, given: Given) -> None:
    name = given["client"]
    ledger, client = stage.reader(name), stage.client(name)
    reading = _reading(stage, name, ledger.read(0), 0, None)
    await stage.perform(client, f"{name} read all", reading, given["ending"])


@step("CLIENT tail NUMBER [ENDING]", "reads from this entry on, and waits for more until the ledger has ended")
async def tail(stage: Stage, given: Given) -> None:
    name = given["client"]
    ledger, client = stage.reader(name), stage.client(name)
    reading = _reading(stage, name, ledger.tail(given["number"]), given["number"], None)
    await stage.perform(client, f"{name} tail {given['number']}", reading, given["ending"])


@step("CLIENT ask [ENDING]", "asks the bookies for the last add confirmed")
async def ask(stage: Stage, given: Given) -> None:
    ledger, client = stage.reader(given["client"]), stage.client(given["client"])

    async def work() -> None:
        await ledger.read_last_add_confirmed()

    await stage.perform(client, f"{given['client']} ask", work(), given["ending"])


# -- administration ------------------------------------------------------------------------------------------------
@step("CLIENT check [ENDING]", "checks every replica of the ledger; all must exist")
async def check(stage: Stage, given: Given) -> None:
    name, story = given["client"], stage.ledger
    client = await stage.connected(name)

    async def work() -> None:
        report = await client.client.administration().check_ledger(story.ledger_id, percentage=100)
        if not report.is_ok:
            raise ScenarioFailure(f"not all is there: {report.fragments}")

    await stage.perform(client, f"{name} check", work(), given["ending"])


@step(
    "CLIENT replicate fragment NUMBER of BOOKIE [ENDING]",
    "copies what the bookie holds of the fragment to another bookie",
)
async def replicate_fragment(stage: Stage, given: Given) -> None:
    name, story, bookie = given["client"], stage.ledger, given["bookie"]
    client = await stage.connected(name)

    async def work() -> None:
        administration = client.client.administration()
        verdicts = (await administration.check_ledger(story.ledger_id)).fragments
        (fragment,) = [verdict.fragment for verdict in verdicts if verdict.fragment.first == given["number"]]
        await administration.replicate_fragment(fragment, [fragment.ensemble.index(bookie)], exclude=[bookie])

    await stage.perform(client, f"{name} replicate fragment {given['number']} of {bookie}", work(), given["ending"])


@step("CLIENT replace BOOKIES [ENDING]", "copies everything that these bookies hold of the ledger to others")
async def replace_bookies(stage: Stage, given: Given) -> None:
    name, story, bookies = given["client"], stage.ledger, given["bookies"]
    client = await stage.connected(name)

    async def work() -> None:
        await client.client.administration().recover_bookies(bookies, ledger_id=story.ledger_id, force=True)

    await stage.perform(client, f"{name} replace {' '.join(bookies)}", work(), given["ending"])


# -- background operations -----------------------------------------------------------------------------------------
@step(
    "await CLIENT OPERATION [ENDING]",
    "the operation that was started with `&` ends now, successfully or as `fails ERROR`",
)
async def await_operation(stage: Stage, given: Given) -> None:
    operations = [stage.operations.get(text) for text in texts_of(given["client"], given["operation"])]
    begun = [operation for operation in operations if operation is not None]
    if len(begun) < len(operations):
        raise ScenarioFailure(f"not all of it was begun with `&`; the begun operations: {', '.join(stage.operations)}")
    await stage.finish(begun, given["ending"])


def texts_of(client: str, operation: str) -> list[str]:
    """Return the texts of the named operations. Appends and writes are one operation per entry."""
    verb, _, rest = operation.partition(" ")
    if verb in ("append", "write") and rest:
        return [f"{client} {verb} {entry_id}" for entry_id in range_of(rest)]
    if verb == "read" and rest != "all":
        entries = range_of(rest)
        return [f"{client} read {entries[0]}..{entries[-1]}"]
    return [f"{client} {operation}"]
