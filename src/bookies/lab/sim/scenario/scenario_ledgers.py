"""Scenario steps in which a client works with the ledger: write, recover, read, administer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from bookies.client.write import AdvancedLedgerWriter
from bookies.errors import EntryExists
from bookies.lab.sim.checkers import Story
from bookies.lab.sim.scenario.scenario_failure import ScenarioFailure
from bookies.lab.sim.scenario.scenario_grammar import check, operation, range_of, step
from bookies.lab.sim.scenario.scenario_stage import Stage
from bookies.lab.sim.world import SimClient
from bookies.model import BookieId

Options = dict[str, str]


# -- ledgers -------------------------------------------------------------------------------------------------------
@operation(
    "CLIENT create QUORUMS on BOOKIES [OPTIONS] [ENDING]",
    "creates the ledger; password, digest, advanced=yes, deferred_sync=yes",
)
async def create(
    stage: Stage, client: SimClient, name: str, quorums: tuple[int, int, int], bookies: list[str], options: Options
) -> None:
    stage.prefer(name, bookies)
    password = options.get("password", "").encode()
    ensemble, write_quorum, ack_quorum = quorums
    flags: dict[str, Any] = {flag: True for flag in ("advanced", "deferred_sync") if options.get(flag) == "yes"}
    ledger = await client.client.create(
        ensemble=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        digest=options.get("digest", "crc32c"),
        password=password,
        **flags,
    )
    story = Story(ledger.ledger_id, password, ack_quorum, client.name, is_advanced="advanced" in flags)
    stage.history.stories[ledger.ledger_id] = stage.story = story
    stage.actors[name].writer = ledger
    if "deferred_sync" in flags:
        stage.deferred.append(ledger.ledger_id)


@step("CLIENT prefer BOOKIES", "whenever it may choose bookies: these first, then the others by name")
async def prefer(stage: Stage, client: str, bookies: list[str]) -> None:
    await stage.connected(client)
    stage.prefer(client, bookies)


@step(
    "CLIENT append ENTRIES [ENDING]",
    "appends one entry after the other; with `&` all at once. The entries must get these ids",
)
async def append(stage: Stage, client: str, entries: range, ending: str | None) -> None:
    story, ledger = stage.ledger, stage.writer(client)
    for entry_id in entries:
        adding = _add(stage, story, ledger.append, (story.payload(entry_id),), entry_id)
        await stage.perform(stage.client(client), f"{client} append {entry_id}", adding, ending)


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
    else:
        check(answered == entry_id, f"the append of entry {entry_id} was acknowledged as {answered}")


@step("CLIENT write ENTRIES [ENDING]", "adds entries under these ids to an advanced ledger", verb="write")
@step("CLIENT write again ENTRIES [ENDING]", "the same, with ids that were written before", verb="write again")
async def write(stage: Stage, client: str, entries: range, ending: str | None, verb: str) -> None:
    story, ledger = stage.ledger, stage.writer(client)
    if not isinstance(ledger, AdvancedLedgerWriter):
        raise ScenarioFailure("the ledger was not created with advanced=yes")
    for entry_id in entries:
        adding = _add(stage, story, ledger.write, (entry_id, story.payload(entry_id)), entry_id)
        await stage.perform(stage.client(client), f"{client} {verb} {entry_id}", adding, ending)


@operation("CLIENT force [ENDING]", "makes durable what was acknowledged with deferred sync")
async def force(stage: Stage, client: SimClient, name: str) -> None:
    story = stage.ledger
    last = await stage.writer(name).force()
    if last >= story.confirmed:
        stage.history.confirmed(story, story.confirmed, last, last)


@operation("CLIENT seal [ENDING]", "ends the ledger after all appended entries")
@operation("CLIENT seal without force [ENDING]", "ends the ledger after the entries forced before", force=False)
@operation("CLIENT seal twice", "two calls at once; both must succeed", calls=2)
async def seal(stage: Stage, client: SimClient, name: str, force: bool = True, calls: int = 1) -> None:
    story, ledger = stage.ledger, stage.writer(name)
    ends = await asyncio.gather(*(ledger.seal(force=force) for _ in range(calls)))
    story.is_over = True
    for end in ends:
        stage.history.ended(story, client.name, end, ledger.length)


@operation("CLIENT close [ENDING]", "releases the ledger without an end")
async def close(stage: Stage, client: SimClient, name: str) -> None:
    ledger = stage.writer(name)
    stage.ledger.is_over = True
    await ledger.close()


@operation("CLIENT leave", "ends the client in an orderly way; its operations end with it")
async def leave(stage: Stage, client: SimClient, name: str) -> None:
    await client.client.close()


@operation("CLIENT delete [ENDING]", "deletes the ledger's record; its entries carry no promise any more")
async def delete(stage: Stage, client: SimClient, name: str) -> None:
    stage.history.stories.pop(stage.ledger.ledger_id, None)
    await client.client.delete(stage.ledger.ledger_id)


def _password(stage: Stage, options: Options) -> bytes:
    return options["password"].encode() if "password" in options else stage.ledger.password


@operation("CLIENT recover [OPTIONS] [ENDING]", "opens with recovery")
async def recover(stage: Stage, client: SimClient, name: str, options: Options) -> None:
    story = stage.ledger
    acknowledged = story.confirmed
    ledger = await client.client.recover(story.ledger_id, password=_password(stage, options))
    stage.actors[name].reader = ledger
    if not ledger.metadata.is_closed or ledger.last_add_confirmed < acknowledged - 1:
        stage.history.violated("I-26", f"recovered to {ledger.metadata!r}, {acknowledged} were acknowledged")
    stage.history.ended(story, client.name, ledger.metadata.last_entry_id, ledger.metadata.length)


@operation("CLIENT open [OPTIONS] [ENDING]", "opens for reading, without recovery")
async def open_ledger(stage: Stage, client: SimClient, name: str, options: Options) -> None:
    password = _password(stage, options)
    stage.actors[name].reader = await client.client.open(stage.ledger.ledger_id, password=password)


async def _read(stage: Stage, name: str, entries: Any, first: int, last: int | None = None) -> None:
    """Read all of `entries` and check that they are first..last. `last`: None: up to the end."""
    expected = first
    async for entry in entries:
        check(entry.id == expected, f"{name} was given entry {entry.id} instead of {expected}")
        stage.history.read(stage.ledger, stage.client(name).name, entry)
        stage.actors[name].shown = max(stage.actors[name].shown, entry.id)
        expected += 1
    check(last in (None, expected - 1), f"{name} was given entries up to {expected - 1}")


@operation("CLIENT read ENTRIES [ENDING]", "reads exactly these entries")
async def read(stage: Stage, client: SimClient, name: str, entries: range) -> None:
    first, last = entries[0], entries[-1]
    await _read(stage, name, stage.reader(name).read(first, last), first, last)


@operation("CLIENT read all [ENDING]", "reads the confirmed entries, or the whole of a closed ledger")
async def read_all(stage: Stage, client: SimClient, name: str) -> None:
    await _read(stage, name, stage.reader(name).read(0), 0)


@operation("CLIENT tail NUMBER [ENDING]", "reads from this entry on, and waits for more until the ledger has ended")
async def tail(stage: Stage, client: SimClient, name: str, number: int) -> None:
    await _read(stage, name, stage.reader(name).tail(number), number)


@operation("CLIENT ask [ENDING]", "asks the bookies for the last add confirmed")
async def ask(stage: Stage, client: SimClient, name: str) -> None:
    await stage.reader(name).read_last_add_confirmed()


# -- administration ------------------------------------------------------------------------------------------------
@operation("CLIENT check [ENDING]", "checks every replica of the ledger; all must exist")
async def check_replicas(stage: Stage, client: SimClient, name: str) -> None:
    report = await client.client.administration().check_ledger(stage.ledger.ledger_id, percentage=100)
    check(report.is_ok, f"not all is there: {report.fragments}")


@operation(
    "CLIENT replicate fragment NUMBER of BOOKIE [ENDING]",
    "copies what the bookie holds of the fragment to another bookie",
)
async def replicate_fragment(stage: Stage, client: SimClient, name: str, number: int, bookie: BookieId) -> None:
    administration = client.client.administration()
    verdicts = (await administration.check_ledger(stage.ledger.ledger_id)).fragments
    (fragment,) = [verdict.fragment for verdict in verdicts if verdict.fragment.first == number]
    await administration.replicate_fragment(fragment, [fragment.ensemble.index(bookie)], exclude=[bookie])


@operation("CLIENT replace BOOKIES [ENDING]", "copies everything that these bookies hold of the ledger to others")
async def replace_bookies(stage: Stage, client: SimClient, name: str, bookies: list[BookieId]) -> None:
    await client.client.administration().recover_bookies(bookies, ledger_id=stage.ledger.ledger_id, force=True)


# -- background operations -----------------------------------------------------------------------------------------
@step(
    "await CLIENT OPERATION [ENDING]",
    "the operation that was started with `&` ends now, successfully or as `fails ERROR`",
)
async def await_operation(stage: Stage, client: str, operation: str, ending: str | None) -> None:
    operations = [stage.operations.get(text) for text in texts_of(client, operation)]
    begun = [operation for operation in operations if operation is not None]
    every = ", ".join(stage.operations)
    check(len(begun) == len(operations), f"not all of it was begun with `&`; the begun operations: {every}")
    await stage.finish(begun, ending)


def texts_of(client: str, operation: str) -> list[str]:
    """Return the texts of the named operations. Appends and writes are one operation per entry."""
    verb, _, entries = operation.partition(" ")
    if verb in ("append", "write") and entries:
        return [f"{client} {verb} {entry_id}" for entry_id in range_of(entries)]
    return [f"{client} {operation}"]
