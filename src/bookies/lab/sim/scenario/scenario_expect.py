"""Scenario steps that check an expectation. Each fails at once if it is not met; `wait until` retries it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from bookies.bookie.server import BookieServer
from bookies.errors import LedgerUnknownToBookie
from bookies.lab.sim.checkers.history import payload_of
from bookies.lab.sim.scenario.scenario_failure import ScenarioFailure
from bookies.lab.sim.scenario.scenario_grammar import check, compare, step
from bookies.lab.sim.scenario.scenario_ledgers import texts_of
from bookies.lab.sim.scenario.scenario_messages import Pattern
from bookies.lab.sim.scenario.scenario_stage import Stage, host_of

T = TypeVar("T")
LAC_OFFSET = 16  # in an entry


# -- the record ----------------------------------------------------------------------------------------------------
@step("expect record STATE [NUMBER]", "the store's record of the ledger: its state, and its last entry if closed")
async def record(stage: Stage, state: str, number: int | None) -> None:
    metadata = stage.record
    if metadata is None:
        raise ScenarioFailure("there is no record")
    check(metadata.state.name == state, f"expected {state}, found {metadata!r}")
    check(number in (None, metadata.last_entry_id), f"expected the last entry {number}, found {metadata!r}")


@step("expect length of ENTRIES", "the length in the store's record is that of these entries' payloads")
async def length(stage: Stage, entries: range) -> None:
    expected = sum(len(payload_of(stage.ledger.ledger_id, entry_id)) for entry_id in entries)
    metadata = stage.record
    check(metadata and metadata.length == expected, f"expected the length {expected}, found {metadata!r}")


@step("expect no record", "the ledger was deleted")
async def no_record(stage: Stage) -> None:
    check(stage.record is None, f"found {stage.record!r}")


@step("expect fragments FRAGMENTS", "the ensembles in the store's record, by their first entries")
async def fragments(stage: Stage, fragments: object) -> None:
    metadata = stage.record
    check(metadata and metadata.ensembles == fragments, f"expected {fragments!r}, found {metadata!r}")


@step("expect COUNT commits by CLIENT", "how often it changed the ledger's record, including the creation")
async def commits(stage: Stage, count: str, client: str) -> None:
    all_commits = stage.cluster.store.commits.get(stage.ledger.ledger_id, [])
    compare(f"commits by {client}", count, sum(commit.author == host_of(client) for commit in all_commits))


# -- bookies -------------------------------------------------------------------------------------------------------
async def _ask(stage: Stage, name: str, question: Callable[[BookieServer], Awaitable[T]], unknown: T) -> T | None:
    """Return a bookie's answer, `unknown` if it does not know the ledger, and None if it is down."""
    bookie = stage.bookie(name)
    if bookie.server is None or bookie.participant is None:
        return None
    server = bookie.server

    async def ask() -> T:
        return await question(server)

    try:
        return await bookie.participant.create_task(ask(), name="look")
    except LedgerUnknownToBookie:
        return unknown


async def _holders(stage: Stage, names: list[str], entry_id: int) -> list[str]:
    """Return those of the bookies that are up and have an entry."""
    ledger_id = stage.ledger.ledger_id

    async def ask(server: BookieServer) -> bool:
        return any(entry_id in run for run in await server.storage.list_entries(ledger_id))

    return [name for name in names if await _ask(stage, name, ask, False)]


@step("expect entry NUMBER on BOOKIES", "each of them has the entry")
async def entry_on(stage: Stage, number: int, bookies: list[str]) -> None:
    holders = await _holders(stage, bookies, number)
    check(holders == bookies, f"{', '.join(name for name in bookies if name not in holders)}: no entry {number}")


@step("expect entry NUMBER not on BOOKIES", "each of them lacks the entry, or is down")
async def entry_not_on(stage: Stage, number: int, bookies: list[str]) -> None:
    holders = await _holders(stage, bookies, number)
    check(not holders, f"{', '.join(holders)}: has entry {number}")


@step("expect entry NUMBER on COUNT of BOOKIES", "this number of them has the entry")
async def entry_on_some(stage: Stage, number: int, count: str, bookies: list[str]) -> None:
    compare(f"of {', '.join(bookies)} with entry {number}", count, len(await _holders(stage, bookies, number)))


@step("expect lac NUMBER:lac in entry NUMBER on BOOKIES", "the last add confirmed in the header of each replica")
async def lac_in(stage: Stage, lac: int, number: int, bookies: list[str]) -> None:
    await entry_on(stage, number, bookies)
    for name in bookies:
        body = await _ask(stage, name, lambda server: server.storage.read(stage.ledger.ledger_id, number), b"")
        actual = int.from_bytes((body or b"")[LAC_OFFSET : LAC_OFFSET + 8], "big", signed=True)
        check(actual == lac, f"{name}: expected the LAC {lac}, found {actual}")


@step("expect fenced BOOKIES", "each of them refuses the ledger's writer", is_fenced=True)
@step("expect unfenced BOOKIES", "none of them refuses the ledger's writer", is_fenced=False)
async def fenced(stage: Stage, bookies: list[str], is_fenced: bool) -> None:
    async def ask(server: BookieServer) -> bool:
        return (await server.store.header(stage.ledger.ledger_id)).is_fenced

    answers = {name: await _ask(stage, name, ask, False) for name in bookies}
    for name, answer in answers.items():
        check(answer is not None, f"{name} is down")
    others = [name for name, answer in answers.items() if answer != is_fenced]
    check(not others, f"{'not fenced' if is_fenced else 'fenced'}: {', '.join(others)}")


# -- clients -------------------------------------------------------------------------------------------------------
@step("expect CLIENT confirmed NUMBER", "the last add confirmed that its writer or reader knows")
async def confirmed(stage: Stage, client: str, number: int) -> None:
    known = (stage.actors[client].writer or stage.reader(client)).last_add_confirmed
    check(known == number, f"expected the LAC {number}; {client} knows {known}")


@step("expect CLIENT shown NUMBER", "the highest entry that any of its reads returned; -1: none")
async def shown(stage: Stage, client: str, number: int) -> None:
    highest = stage.actors[client].shown
    check(highest == number, f"{client} was shown {highest}")


@step("expect pending CLIENT OPERATION", "the operation that was started with `&` has not ended")
async def pending(stage: Stage, client: str, operation: str) -> None:
    for text in texts_of(client, operation):
        begun = stage.operations.get(text)
        if begun is None:
            raise ScenarioFailure(f"`{text}` was not begun; the begun operations: {', '.join(stage.operations)}")
        check(not begun.is_over, f"`{text}` has ended: {begun.error or 'it succeeded'}")


# -- messages ------------------------------------------------------------------------------------------------------
@step(
    "expect COUNT MESSAGES [STATUS]", "this number of these messages was sent until now, including held and lost ones"
)
async def seen(stage: Stage, count: str, messages: Pattern, status: str | None) -> None:
    fitting = [message for message in stage.messages.seen if messages.fits(message)]
    number = sum(status in (None, message.status) for message in fitting)
    compare(f"{messages} {status or ''}".rstrip(), count, number)


@step("expect held MESSAGES", "at least one for each peer is held")
async def held(stage: Stage, messages: Pattern) -> None:
    peers = {message.peer for message in stage.messages.held(messages)}
    missing = [peer for peer in messages.peers if peer not in peers]
    check(not missing, f"no message is held for {', '.join(missing)}")
