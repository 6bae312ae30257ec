"""Scenario steps that check an expectation. Each fails at once if it is not met; `wait until` retries it."""

from __future__ import annotations

from bookies.errors import LedgerUnknownToBookie
from bookies.lab.sim.checkers.history import payload_of
from bookies.lab.sim.scenario.scenario_failure import ScenarioFailure
from bookies.lab.sim.scenario.scenario_grammar import Given, compare, step
from bookies.lab.sim.scenario.scenario_ledgers import texts_of
from bookies.lab.sim.scenario.scenario_messages import Message, Pattern
from bookies.lab.sim.scenario.scenario_stage import Stage, host_of

LAC_OFFSET = 16  # in an entry


# -- the record ----------------------------------------------------------------------------------------------------
@step("expect record STATE [NUMBER]", "the store's record of the ledger: its state, and its last entry if closed")
async def record(stage: Stage, given: Given) -> None:
    metadata = stage.record
    if metadata is None:
        raise ScenarioFailure("there is no record")
    if metadata.state.name != given["state"]:
        raise ScenarioFailure(f"expected {given['state']}, found {metadata!r}")
    if given["number"] is not None and metadata.last_entry_id != given["number"]:
        raise ScenarioFailure(f"expected the last entry {given['number']}, found {metadata!r}")


@step("expect length of ENTRIES", "the length in the store's record is that of these entries' payloads")
async def length(stage: Stage, given: Given) -> None:
    metadata = stage.record
    expected = sum(len(payload_of(stage.ledger.ledger_id, entry_id)) for entry_id in given["entries"])
    if metadata is None or metadata.length != expected:
        raise ScenarioFailure(f"expected the length {expected}, found {metadata!r}")


@step("expect no record", "the ledger was deleted")
async def no_record(stage: Stage, given: Given) -> None:
    if stage.record is not None:
        raise ScenarioFailure(f"found {stage.record!r}")


@step("expect fragments FRAGMENTS", "the ensembles in the store's record, by their first entries")
async def fragments(stage: Stage, given: Given) -> None:
    metadata = stage.record
    if metadata is None or metadata.ensembles != given["fragments"]:
        raise ScenarioFailure(f"expected {given['fragments']!r}, found {metadata!r}")


@step("expect COUNT commits by CLIENT", "how often it changed the ledger's record, including the creation")
async def commits(stage: Stage, given: Given) -> None:
    author = host_of(given["client"])
    own = [commit for commit in stage.cluster.store.commits.get(stage.ledger.ledger_id, []) if commit.author == author]
    compare(f"commits by {given['client']}", given["count"], len(own))


# -- bookies -------------------------------------------------------------------------------------------------------
async def _holds(stage: Stage, name: str, entry_id: int) -> bool:
    """Report whether a bookie that is up has an entry."""
    bookie = stage.bookie(name)
    if bookie.server is None or bookie.participant is None:
        return False
    try:
        listing = bookie.server.storage.list_entries(stage.ledger.ledger_id)
        runs = await bookie.participant.create_task(listing, name="look")
    except LedgerUnknownToBookie:
        return False
    return any(entry_id in run for run in runs)


@step("expect entry NUMBER on BOOKIES", "each of them has the entry")
async def entry_on(stage: Stage, given: Given) -> None:
    lacking = [name for name in given["bookies"] if not await _holds(stage, name, given["number"])]
    if lacking:
        raise ScenarioFailure(f"{', '.join(lacking)}: no entry {given['number']}")


@step("expect entry NUMBER not on BOOKIES", "each of them lacks the entry, or is down")
async def entry_not_on(stage: Stage, given: Given) -> None:
    having = [name for name in given["bookies"] if await _holds(stage, name, given["number"])]
    if having:
        raise ScenarioFailure(f"{', '.join(having)}: has entry {given['number']}")


@step("expect entry NUMBER on COUNT of BOOKIES", "this number of them has the entry")
async def entry_on_some(stage: Stage, given: Given) -> None:
    having = [name for name in given["bookies"] if await _holds(stage, name, given["number"])]
    compare(f"of {', '.join(given['bookies'])} with entry {given['number']}", given["count"], len(having))


@step("expect lac NUMBER:lac in entry NUMBER on BOOKIES", "the last add confirmed in the header of each replica")
async def lac_in(stage: Stage, given: Given) -> None:
    for name in given["bookies"]:
        bookie = stage.bookie(name)
        if bookie.server is None or bookie.participant is None or not await _holds(stage, name, given["number"]):
            raise ScenarioFailure(f"{name}: no entry {given['number']}")
        reading = bookie.server.storage.read(stage.ledger.ledger_id, given["number"])
        body = await bookie.participant.create_task(reading, name="look")
        lac = int.from_bytes(body[LAC_OFFSET : LAC_OFFSET + 8], "big", signed=True)
        if lac != given["lac"]:
            raise ScenarioFailure(f"{name}: expected the LAC {given['lac']}, found {lac}")


async def _is_fenced(stage: Stage, name: str) -> bool:
    bookie = stage.bookie(name)
    if bookie.server is None or bookie.participant is None:
        raise ScenarioFailure(f"{name} is down")
    try:
        loading = bookie.server.store.header(stage.ledger.ledger_id)
        header = await bookie.participant.create_task(loading, name="look")
    except LedgerUnknownToBookie:
        return False
    return bool(header.is_fenced)


@step("expect fenced BOOKIES", "each of them refuses the ledger's writer")
async def fenced(stage: Stage, given: Given) -> None:
    others = [name for name in given["bookies"] if not await _is_fenced(stage, name)]
    if others:
        raise ScenarioFailure(f"not fenced: {', '.join(others)}")


@step("expect unfenced BOOKIES", "none of them refuses the ledger's writer")
async def unfenced(stage: Stage, given: Given) -> None:
    others = [name for name in given["bookies"] if await _is_fenced(stage, name)]
    if others:
        raise ScenarioFailure(f"fenced: {', '.join(others)}")


# -- clients -------------------------------------------------------------------------------------------------------
@step("expect CLIENT confirmed NUMBER", "the last add confirmed that its writer or reader knows")
async def confirmed(stage: Stage, given: Given) -> None:
    name = given["client"]
    handle = stage.writers.get(name) or stage.reader(name)
    if handle.last_add_confirmed != given["number"]:
        raise ScenarioFailure(f"expected the LAC {given['number']}; {name} knows {handle.last_add_confirmed}")


@step("expect CLIENT shown NUMBER", "the highest entry that any of its reads returned; -1: none")
async def shown(stage: Stage, given: Given) -> None:
    if stage.shown.get(given["client"], -1) != given["number"]:
        raise ScenarioFailure(f"{given['client']} was shown {stage.shown.get(given['client'], -1)}")


@step("expect pending CLIENT OPERATION", "the operation that was started with `&` has not ended")
async def pending(stage: Stage, given: Given) -> None:
    for text in texts_of(given["client"], given["operation"]):
        if text not in stage.operations:
            raise ScenarioFailure(f"`{text}` was not begun; the begun operations: {', '.join(stage.operations)}")
        if stage.operations[text].is_over:
            raise ScenarioFailure(f"`{text}` has ended: {stage.operations[text].error or 'it succeeded'}")


# -- messages ------------------------------------------------------------------------------------------------------
@step(
    "expect COUNT MESSAGES [STATUS]", "this number of these messages was sent until now, including held and lost ones"
)
async def seen(stage: Stage, given: Given) -> None:
    messages = _fitting(stage.messages.seen, given["messages"], given["status"])
    compare(f"{given['messages']} {given['status'] or ''}".rstrip(), given["count"], len(messages))


@step("expect held MESSAGES", "at least one for each peer is held")
async def held(stage: Stage, given: Given) -> None:
    peers = {message.peer for message in stage.messages.held(given["messages"])}
    missing = [peer for peer in given["messages"].peers if peer not in peers]
    if missing:
        raise ScenarioFailure(f"no message is held for {', '.join(missing)}")


def _fitting(messages: list[Message], pattern: Pattern, status: str | None) -> list[Message]:
    return [message for message in messages if pattern.fits(message) and status in (None, message.status)]
