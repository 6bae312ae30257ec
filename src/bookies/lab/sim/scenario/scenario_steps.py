"""Scenario steps that act on the world, on messages, on the network, on participants and on replicas."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from bookies.config import BookieConfig, ClientConfig, RecoveryConfig
from bookies.errors import Status
from bookies.lab.sim.clients import offloading
from bookies.lab.sim.scenario.scenario_failure import ScenarioFailure
from bookies.lab.sim.scenario.scenario_grammar import check, parse_step, step
from bookies.lab.sim.scenario.scenario_messages import Countdown, Message, Pattern, Rule
from bookies.lab.sim.scenario.scenario_stage import PATIENCE_S, SETTLING_S, Stage, host_of
from bookies.lab.sim.world.disk import PROCESS_DIES, Loss
from bookies.lab.sim.world.loop import Participant

POWER_FAILS = Loss(survival=0.0)


# -- the world -----------------------------------------------------------------------------------------------------
@step("cluster BOOKIES", "first step: starts these bookies")
async def cluster(stage: Stage, bookies: list[str]) -> None:
    for name in bookies:
        stage.add_bookie(name)
    await stage.cluster.start()


@step("start BOOKIES", "starts bookies: new ones, or again after a crash")
async def start(stage: Stage, bookies: list[str]) -> None:
    for name in bookies:
        if name not in stage.cluster.bookies:
            stage.add_bookie(name)
        check(not stage.bookie(name).is_up, f"{name} is up")
        await stage.cluster.start_bookie(name)
        check(stage.bookie(name).is_up, f"{name} could not start")


@step("client CLIENT OPTIONS", "settings of a client that has not started yet, as in `ClientConfig`")
async def client(stage: Stage, client: str, options: dict[str, str]) -> None:
    check(host_of(client) not in stage.cluster.clients, f"{client} has been started")
    stage.actors[client].settings = settings_of(ClientConfig, options)


@step("bookies OPTIONS", "settings of bookies that start for the first time later, as in `BookieConfig`")
async def bookies(stage: Stage, options: dict[str, str]) -> None:
    stage.cluster.bookie_settings = {**stage.cluster.bookie_settings, **settings_of(BookieConfig, options)}


def settings_of(
    configuration: type[ClientConfig] | type[RecoveryConfig] | type[BookieConfig], options: dict[str, str]
) -> dict[str, object]:
    """Return the options of a step as fields of a configuration. Raises `ScenarioFailure`."""
    defaults = {field.name: field.default for field in dataclasses.fields(configuration)}
    for name in options:
        check(name in defaults, f"there is no setting {name}; expected one of {', '.join(defaults)}")
    return {name: _setting(defaults[name], text) for name, text in options.items()}


def _setting(default: Any, text: str) -> object:
    """Return the text as a value of the default's type."""
    if isinstance(default, bool):
        return text == "yes"
    return int(text) if isinstance(default, int) else text


@step("wait SECONDS s", "lets virtual time pass")
async def wait(stage: Stage, seconds: float) -> None:
    await asyncio.sleep(seconds)


@step("wait until EXPECTATION", "waits until the expectation is met, at most 120 s")
async def wait_until(stage: Stage, expectation: str) -> None:
    sentence, values = parse_step(f"expect {expectation}")
    deadline = stage.loop.time() + PATIENCE_S
    while True:
        try:
            await sentence.perform(stage, **values)
            return
        except ScenarioFailure:
            if stage.loop.time() > deadline:
                raise
        await asyncio.sleep(SETTLING_S / 4)


@step("allow INVARIANT", "allows this scenario to break this promise, for example because it destroys data")
async def allow(stage: Stage, invariant: str) -> None:
    stage.allowed.append(invariant)


# -- messages ------------------------------------------------------------------------------------------------------
_ALL = (
    ("hold MESSAGES", "holds these messages from now on, until `release`. At least one for each peer must come"),
    ("lose all MESSAGES", "loses all of them"),
    ("spoil all MESSAGES", "flips a bit at the end of all of them"),
    ("break at all MESSAGES", "breaks the connection whenever one of them is sent"),
)
_NEXT = (
    ("lose MESSAGES", "loses the next one for each peer. For the store: the client learns that the connection broke"),
    ("repeat MESSAGES", "delivers the next one for each peer twice"),
    ("copy MESSAGES", "delivers the next one for each peer, and holds a second copy until `release`"),
    ("spoil MESSAGES", "flips a bit at the end of the next one for each peer: of the payload, of a digest"),
    ("break at MESSAGES", "breaks the connection when the next one for each peer is sent; the message is lost"),
    ("age MESSAGES", "the store's next response to a read comes from a replica that lags by one version"),
)


async def add_rule(stage: Stage, messages: Pattern, action: str, is_once: bool) -> None:
    stage.messages.rules.append(Rule(action, messages, is_once))


for _template, _help in (*_ALL, *_NEXT):
    step(_template, _help, action=_template.split()[0], is_once=(_template, _help) in _NEXT)(add_rule)


@step("release MESSAGES", "delivers the held ones, at least one for each peer, and stops holding", is_lost=False)
@step("drop MESSAGES", "loses the held ones, and stops holding", is_lost=True)
async def release(stage: Stage, messages: Pattern, is_lost: bool) -> None:
    missing = stage.messages.release(messages, is_lost=is_lost)
    check(not missing, f"no message is held for {', '.join(missing)}")


@step("release first MESSAGES", "delivers the oldest held one, and continues to hold")
async def release_first(stage: Stage, messages: Pattern) -> None:
    is_released = len(messages.peers) == 1 and not stage.messages.release(messages, is_one=True)
    check(is_released, "no message is held, or the step names more than one peer")


@step("power fails when MESSAGES", "the power fails at the bookie immediately after it has sent the next such response")
async def power_fails_when(stage: Stage, messages: Pattern) -> None:
    def fail(message: Message) -> None:
        stage.cluster.crash_bookie(message.peer, POWER_FAILS, is_silent=True)

    stage.messages.rules.append(Rule("call", messages, is_once=True, then=fail))


@step(
    "answer MESSAGES with STATUS",
    "the next such request to each peer does not arrive and gets this response",
    is_once=True,
)
@step("answer all MESSAGES with STATUS", "the same for all such requests", is_once=False)
async def answer(stage: Stage, messages: Pattern, status: str, is_once: bool) -> None:
    is_request = not messages.is_answer and status in Status.__members__
    check(is_request, f"only requests are answered, with one of {', '.join(Status.__members__)}")
    stage.messages.rules.append(Rule("answer", messages, is_once, Status[status]))


@step("answer all MESSAGES with entry NUMBER", "every such read returns the valid bytes of another entry")
async def answer_with_entry(stage: Stage, messages: Pattern, number: int) -> None:
    assert stage.record is not None
    body = offloading.package(stage.record, stage.ledger, number, number - 1)
    stage.messages.rules.append(Rule("answer", messages, status=Status.OK, body=body))


# -- the network ---------------------------------------------------------------------------------------------------
@step("cut HOST HOSTS", "blocks messages between the first and the others, in both directions", is_cut=True)
@step("heal HOST HOSTS", "undoes `cut`; messages sent meanwhile arrive now", is_cut=False)
async def cut(stage: Stage, host: str, hosts: list[str], is_cut: bool) -> None:
    change = stage.cluster.network.block if is_cut else stage.cluster.network.unblock
    for other in map(host_of, hosts):
        change(host_of(host), other)
        change(other, host_of(host))


@step("break HOST HOSTS", "breaks the connections between the first and the others; both sides learn of it")
async def break_connections(stage: Stage, host: str, hosts: list[str]) -> None:
    others = [host_of(other) for other in hosts]
    between = stage.cluster.network.connections(host_of(host))
    transports = [transport for transport in between if transport.outgoing.target.host in others]
    check(transports, "there is no such connection")
    for transport in transports:
        stage.cluster.network.cut(transport)


# -- participants --------------------------------------------------------------------------------------------------
@step("crash CLIENT", "its process dies")
async def crash_client(stage: Stage, client: str) -> None:
    stage.client(client)
    stage.cluster.kill_client(host_of(client))
    stage.actors[client].writer = stage.actors[client].reader = None


@step("crash BOOKIES", "their processes die; what they wrote to files remains", loss=PROCESS_DIES)
@step("power fails at BOOKIES", "unsynced data is lost; their peers are not informed", loss=POWER_FAILS)
async def crash_bookies(stage: Stage, bookies: list[str], loss: Loss) -> None:
    for name in bookies:
        check(stage.bookie(name).is_up, f"{name} is down")
        stage.cluster.crash_bookie(name, loss, is_silent=loss is POWER_FAILS)


@step("lose BOOKIES", "their processes die and are never restarted")
async def lose_bookies(stage: Stage, bookies: list[str]) -> None:
    for name in bookies:
        stage.bookie(name)
        stage.cluster.lose_bookie(name, PROCESS_DIES)


@step("wipe BOOKIES", "replaces their disks by empty ones, while they are down")
async def wipe(stage: Stage, bookies: list[str]) -> None:
    for name in bookies:
        check(not stage.bookie(name).is_up, f"{name} is up")
        stage.wipe(name)


@step("empty BOOKIES", "the same, and deletes their cookies: they may start again under their ids")
async def empty(stage: Stage, bookies: list[str]) -> None:
    for name in bookies:
        check(not stage.bookie(name).is_up, f"{name} is up")
        await stage.cluster.empty_bookie(name)


@step("trust HOSTS", "they do not check records before adds, like Apache's: every ledger seems open to them")
async def trust(stage: Stage, hosts: list[str]) -> None:
    stage.cluster.store.trusts = [host_of(name) for name in hosts].__contains__


@step("lag HOSTS", "the store's servers that answer their plain reads keep the records of this moment")
async def lag(stage: Stage, hosts: list[str]) -> None:
    for name in hosts:
        stage.cluster.store.lag(host_of(name))


@step("restore BOOKIES", "puts their old disks back")
async def restore(stage: Stage, bookies: list[str]) -> None:
    for name in bookies:
        is_wiped = name in stage.old_disks and not stage.bookie(name).is_up
        check(is_wiped, f"{name} is up, or was not wiped")
        stage.bookie(name).disk = stage.old_disks.pop(name)


@step("refuse to start BOOKIES", "each of them must refuse to start")
async def refuse_to_start(stage: Stage, bookies: list[str]) -> None:
    for name in bookies:
        bookie, problems = stage.bookie(name), len(stage.cluster.problems)
        await stage.cluster.start_bookie(name)
        check(bookie.is_lost, f"{name} {'has started' if bookie.is_up else 'failed for another reason'}")
        await asyncio.sleep(0)  # Its process ends, and its supervisor is about to restart it.
        if bookie.restart is not None:
            bookie.restart.cancel()
            bookie.restart = None
        bookie.is_lost = False
        del stage.cluster.problems[problems:]


def _count_down(stage: Stage, host: str, count: int, act: Callable[[], None]) -> None:
    stage.messages.countdowns.append(Countdown(host, count, act))


@step(
    "crash CLIENT after NUMBER messages",
    "its process dies after it has sent or received this number of messages; the last one still passes",
)
async def crash_after(stage: Stage, client: str, number: int) -> None:
    _count_down(stage, client, number, lambda: stage.cluster.kill_client(host_of(client)))


@step("break CLIENT after NUMBER messages", "all its connections break at that moment")
async def break_after(stage: Stage, client: str, number: int) -> None:
    network = stage.cluster.network

    def cut_all() -> None:
        for transport in network.connections(host_of(client)):
            network.cut(transport)

    _count_down(stage, client, number, cut_all)


@step(
    "power fails at BOOKIE after NUMBER messages",
    "the power fails when it has sent or received this number of messages",
)
async def power_fails_after(stage: Stage, bookie: str, number: int) -> None:
    def fail() -> None:
        stage.cluster.crash_bookie(bookie, POWER_FAILS, is_silent=False, restart_after_s=1.0)

    _count_down(stage, bookie, number, fail)


@step("pause HOSTS", "their processes stop; arriving messages wait", act=Participant.pause)
@step("resume HOSTS", "their processes continue", act=Participant.resume)
async def pause(stage: Stage, hosts: list[str], act: Callable[[Participant], None]) -> None:
    for name in hosts:
        process = stage.bookie(name) if name.startswith("b") else stage.client(name)
        if process.participant is None or not process.participant.is_alive:
            raise ScenarioFailure(f"{name} is down")
        act(process.participant)


@step("expire HOST", "the metadata store expires its session")
async def expire(stage: Stage, host: str) -> None:
    if not host.startswith("b"):
        stage.client(host)
    stage.cluster.expire_session(host_of(host))


# -- replicas -------------------------------------------------------------------------------------------------------
@step(
    "plant entry NUMBER lac NUMBER:lac on BOOKIES", "a replica as another client left it, with this LAC in its header"
)
async def plant(stage: Stage, number: int, lac: int, bookies: list[str]) -> None:
    story, record = stage.ledger, stage.record
    assert record is not None
    story.started = max(story.started, number + 1)
    for name in bookies:
        is_planted = offloading.plant(stage.bookie(name), record, story, number, lac)
        check(is_planted, f"{name} is down, or refuses")
