"""Scenario steps that act on the world, on messages, on the network, on participants and on replicas."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from bookies.config import BookieConfig, ClientConfig, RecoveryConfig
from bookies.errors import Status
from bookies.lab.sim.clients import foreign_replicas
from bookies.lab.sim.scenario.scenario_failure import ScenarioFailure
from bookies.lab.sim.scenario.scenario_grammar import Given, parse_step, step
from bookies.lab.sim.scenario.scenario_messages import Countdown, Message, Rule
from bookies.lab.sim.scenario.scenario_stage import PATIENCE_S, SETTLING_S, Stage, host_of
from bookies.lab.sim.world.disk import PROCESS_DIES, Loss

POWER_FAILS = Loss(survival=0.0)


# -- the world -----------------------------------------------------------------------------------------------------
@step("cluster BOOKIES", "first step: starts these bookies")
async def cluster(stage: Stage, given: Given) -> None:
    for name in given["bookies"]:
        stage.add_bookie(name)
    await stage.cluster.start()


@step("start BOOKIES", "starts bookies: new ones, or again after a crash")
async def start(stage: Stage, given: Given) -> None:
    for name in given["bookies"]:
        if name not in stage.cluster.bookies:
            stage.add_bookie(name)
        if stage.bookie(name).is_up:
            raise ScenarioFailure(f"{name} is up")
        await stage.cluster.start_bookie(name)
        if not stage.bookie(name).is_up:
            raise ScenarioFailure(f"{name} could not start")


@step("client CLIENT OPTIONS", "settings of a client that has not started yet, as in `ClientConfig`")
async def client(stage: Stage, given: Given) -> None:
    if host_of(given["client"]) in stage.cluster.clients:
        raise ScenarioFailure(f"{given['client']} has been started")
    stage.settings[given["client"]] = settings_of(ClientConfig, given["options"])


@step("bookies OPTIONS", "settings of bookies that start for the first time later, as in `BookieConfig`")
async def bookies(stage: Stage, given: Given) -> None:
    settings = settings_of(BookieConfig, given["options"])
    stage.cluster.bookie_settings = {**stage.cluster.bookie_settings, **settings}


def settings_of(
    configuration: type[ClientConfig] | type[RecoveryConfig] | type[BookieConfig], options: dict[str, str]
) -> dict[str, object]:
    """Return the options of a step as fields of a configuration. Raises `ScenarioFailure`."""
    defaults = {field.name: field.default for field in dataclasses.fields(configuration)}
    for name in options:
        if name not in defaults:
            raise ScenarioFailure(f"there is no setting {name}; expected one of {', '.join(defaults)}")
    return {name: _setting(defaults[name], text) for name, text in options.items()}


def _setting(default: Any, text: str) -> object:
    """Return the text as a value of the default's type."""
    if isinstance(default, bool):
        return text == "yes"
    return int(text) if isinstance(default, int) else text


@step("wait SECONDS s", "lets virtual time pass")
async def wait(stage: Stage, given: Given) -> None:
    await asyncio.sleep(given["seconds"])


@step("wait until EXPECTATION", "waits until the expectation is met, at most 120 s")
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


@step("allow INVARIANT", "allows this scenario to break this promise, for example because it destroys data")
async def allow(stage: Stage, given: Given) -> None:
    stage.allowed.append(given["invariant"])


# -- messages ------------------------------------------------------------------------------------------------------
def _add_rule(stage: Stage, action: str, given: Given, *, is_once: bool = True, status: Status | None = None) -> None:
    stage.messages.rules.append(Rule(action, given["messages"], is_once, status))


@step("hold MESSAGES", "holds these messages from now on, until `release`. At least one for each peer must come")
async def hold(stage: Stage, given: Given) -> None:
    _add_rule(stage, "hold", given, is_once=False)


@step("release MESSAGES", "delivers the held ones, at least one for each peer, and stops holding")
async def release(stage: Stage, given: Given) -> None:
    if missing := stage.messages.release(given["messages"]):
        raise ScenarioFailure(f"no message is held for {', '.join(missing)}")


@step("release first MESSAGES", "delivers the oldest held one, and continues to hold")
async def release_first(stage: Stage, given: Given) -> None:
    if len(given["messages"].peers) > 1 or stage.messages.release(given["messages"], is_one=True):
        raise ScenarioFailure("no message is held, or the step names more than one peer")


@step("drop MESSAGES", "loses the held ones, and stops holding")
async def drop(stage: Stage, given: Given) -> None:
    if missing := stage.messages.release(given["messages"], is_lost=True):
        raise ScenarioFailure(f"no message is held for {', '.join(missing)}")


@step("lose MESSAGES", "loses the next one for each peer. For the store: the client learns that the connection broke")
async def lose(stage: Stage, given: Given) -> None:
    _add_rule(stage, "lose", given)


@step("lose all MESSAGES", "loses all of them")
async def lose_all(stage: Stage, given: Given) -> None:
    _add_rule(stage, "lose", given, is_once=False)


@step("repeat MESSAGES", "delivers the next one for each peer twice")
async def repeat(stage: Stage, given: Given) -> None:
    _add_rule(stage, "repeat", given)


@step("copy MESSAGES", "delivers the next one for each peer, and holds a second copy until `release`")
async def copy(stage: Stage, given: Given) -> None:
    _add_rule(stage, "copy", given)


@step("spoil MESSAGES", "flips a bit at the end of the next one for each peer: of the payload, of a digest")
async def spoil(stage: Stage, given: Given) -> None:
    _add_rule(stage, "spoil", given)


@step("spoil all MESSAGES", "flips a bit at the end of all of them")
async def spoil_all(stage: Stage, given: Given) -> None:
    _add_rule(stage, "spoil", given, is_once=False)


@step("break at MESSAGES", "breaks the connection when the next one for each peer is sent; the message is lost")
async def break_at(stage: Stage, given: Given) -> None:
    _add_rule(stage, "break", given)


@step("break at all MESSAGES", "breaks the connection whenever one of them is sent")
async def break_at_all(stage: Stage, given: Given) -> None:
    _add_rule(stage, "break", given, is_once=False)


@step("age MESSAGES", "the store's next response to a read comes from a replica that lags by one version")
async def age(stage: Stage, given: Given) -> None:
    _add_rule(stage, "age", given)


@step("power fails when MESSAGES", "the power fails at the bookie immediately after it has sent the next such response")
async def power_fails_when(stage: Stage, given: Given) -> None:
    def fail(message: Message) -> None:
        stage.cluster.crash_bookie(message.peer, POWER_FAILS, is_silent=True)

    stage.messages.rules.append(Rule("call", given["messages"], is_once=True, then=fail))


def _answer(stage: Stage, given: Given, *, is_once: bool) -> None:
    if given["messages"].is_answer or given["status"] not in Status.__members__:
        raise ScenarioFailure(f"only requests are answered, with one of {', '.join(Status.__members__)}")
    _add_rule(stage, "answer", given, is_once=is_once, status=Status[given["status"]])


@step("answer MESSAGES with STATUS", "the next such request to each peer does not arrive and gets this response")
async def answer(stage: Stage, given: Given) -> None:
    _answer(stage, given, is_once=True)


@step("answer all MESSAGES with STATUS", "the same for all such requests")
async def answer_all(stage: Stage, given: Given) -> None:
    _answer(stage, given, is_once=False)


@step("answer all MESSAGES with entry NUMBER", "every such read returns the valid bytes of another entry")
async def answer_with_entry(stage: Stage, given: Given) -> None:
    assert stage.record is not None
    body = foreign_replicas.package(stage.record, stage.ledger, given["number"], given["number"] - 1)
    stage.messages.rules.append(Rule("answer", given["messages"], status=Status.OK, body=body))


# -- the network ---------------------------------------------------------------------------------------------------
@step("cut HOST HOSTS", "blocks messages between the first and the others, in both directions")
async def cut(stage: Stage, given: Given) -> None:
    for other in given["hosts"]:
        stage.cluster.network.block(host_of(given["host"]), host_of(other))
        stage.cluster.network.block(host_of(other), host_of(given["host"]))


@step("heal HOST HOSTS", "undoes `cut`; messages sent meanwhile arrive now")
async def heal(stage: Stage, given: Given) -> None:
    for other in given["hosts"]:
        stage.cluster.network.unblock(host_of(given["host"]), host_of(other))
        stage.cluster.network.unblock(host_of(other), host_of(given["host"]))


@step("break HOST HOSTS", "breaks the connections between the first and the others; both sides learn of it")
async def break_connections(stage: Stage, given: Given) -> None:
    network = stage.cluster.network
    others = [host_of(other) for other in given["hosts"]]
    transports = [
        transport
        for transport in network.connections(host_of(given["host"]))
        if transport.outgoing.target.host in others
    ]
    if not transports:
        raise ScenarioFailure("there is no such connection")
    for transport in transports:
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


@step("crash BOOKIES", "their processes die; what they wrote to files remains")
async def crash_bookies(stage: Stage, given: Given) -> None:
    _crash(stage, given, PROCESS_DIES, is_silent=False)


@step("lose BOOKIES", "their processes die and are never restarted")
async def lose_bookies(stage: Stage, given: Given) -> None:
    for name in given["bookies"]:
        stage.bookie(name)
        stage.cluster.lose_bookie(name, PROCESS_DIES)


@step("power fails at BOOKIES", "unsynced data is lost; their peers are not informed")
async def power_fails(stage: Stage, given: Given) -> None:
    _crash(stage, given, POWER_FAILS, is_silent=True)


@step("wipe BOOKIES", "replaces their disks by empty ones, while they are down")
async def wipe(stage: Stage, given: Given) -> None:
    for name in given["bookies"]:
        if stage.bookie(name).is_up:
            raise ScenarioFailure(f"{name} is up")
        stage.wipe(name)


@step("empty BOOKIES", "the same, and deletes their cookies: they may start again under their ids")
async def empty(stage: Stage, given: Given) -> None:
    for name in given["bookies"]:
        if stage.bookie(name).is_up:
            raise ScenarioFailure(f"{name} is up")
        await stage.cluster.empty_bookie(name)


@step("trust HOSTS", "they do not check records before adds, like Apache's: every ledger seems open to them")
async def trust(stage: Stage, given: Given) -> None:
    hosts = [host_of(name) for name in given["hosts"]]
    stage.cluster.store.trusts = hosts.__contains__


@step("lag HOSTS", "the store's servers that answer their plain reads keep the records of this moment")
async def lag(stage: Stage, given: Given) -> None:
    for name in given["hosts"]:
        stage.cluster.store.lag(host_of(name))


@step("restore BOOKIES", "puts their old disks back")
async def restore(stage: Stage, given: Given) -> None:
    for name in given["bookies"]:
        if stage.bookie(name).is_up or name not in stage.old_disks:
            raise ScenarioFailure(f"{name} is up, or was not wiped")
        stage.bookie(name).disk = stage.old_disks.pop(name)


@step("refuse to start BOOKIES", "each of them must refuse to start")
async def refuse_to_start(stage: Stage, given: Given) -> None:
    for name in given["bookies"]:
        bookie, problems = stage.bookie(name), len(stage.cluster.problems)
        await stage.cluster.start_bookie(name)
        if not bookie.is_lost:
            raise ScenarioFailure(f"{name} {'has started' if bookie.is_up else 'failed for another reason'}")
        await asyncio.sleep(0)  # Its process ends, and its supervisor is about to restart it.
        if bookie.restart is not None:
            bookie.restart.cancel()
            bookie.restart = None
        bookie.is_lost = False
        del stage.cluster.problems[problems:]


@step(
    "crash CLIENT after NUMBER messages",
    "its process dies after it has sent or received this number of messages; the last one still passes",
)
async def crash_after(stage: Stage, given: Given) -> None:
    name = given["client"]

    def crash() -> None:
        stage.cluster.kill_client(host_of(name))

    stage.messages.countdowns.append(Countdown(name, given["number"], crash))


@step("break CLIENT after NUMBER messages", "all its connections break at that moment")
async def break_after(stage: Stage, given: Given) -> None:
    network, host = stage.cluster.network, host_of(given["client"])

    def cut_all() -> None:
        for transport in network.connections(host):
            network.cut(transport)

    stage.messages.countdowns.append(Countdown(given["client"], given["number"], cut_all))


@step(
    "power fails at BOOKIE after NUMBER messages",
    "the power fails when it has sent or received this number of messages",
)
async def power_fails_after(stage: Stage, given: Given) -> None:
    name = given["bookie"]

    def fail() -> None:
        stage.cluster.crash_bookie(name, POWER_FAILS, is_silent=False, restart_after_s=1.0)

    stage.messages.countdowns.append(Countdown(name, given["number"], fail))


@step("pause HOSTS", "their processes stop; arriving messages wait")
async def pause(stage: Stage, given: Given) -> None:
    for name in given["hosts"]:
        _participant(stage, name).pause()


@step("resume HOSTS", "their processes continue")
async def resume(stage: Stage, given: Given) -> None:
    for name in given["hosts"]:
        _participant(stage, name).resume()


def _participant(stage: Stage, name: str) -> Any:
    if name.startswith("b"):
        if not stage.bookie(name).is_up:
            raise ScenarioFailure(f"{name} is down")
        return stage.bookie(name).participant
    return stage.client(name).participant


@step("expire HOST", "the metadata store expires its session")
async def expire(stage: Stage, given: Given) -> None:
    if not given["host"].startswith("b"):
        stage.client(given["host"])
    stage.cluster.expire_session(host_of(given["host"]))


# -- replicas -------------------------------------------------------------------------------------------------------
@step(
    "plant entry NUMBER lac NUMBER:lac on BOOKIES", "a replica as another client left it, with this LAC in its header"
)
async def plant(stage: Stage, given: Given) -> None:
    story, record, entry_id = stage.ledger, stage.record, given["number"]
    assert record is not None
    story.started = max(story.started, entry_id + 1)
    for name in given["bookies"]:
        if not foreign_replicas.plant(stage.bookie(name), record, story, entry_id, given["lac"]):
            raise ScenarioFailure(f"{name} is down, or refuses")
