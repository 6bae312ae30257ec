"""The steps of scenarios that do something: to the world, to messages, to participants, with ledgers."""

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
    stage.settings[given["client"]] = settings_of(ClientConfig, given["options"])


@step("bookies OPTIONS", "settings of bookies that are started for the first time later, as in `BookieConfig`")
async def bookies(stage: Stage, given: Given) -> None:
    settings = settings_of(BookieConfig, given["options"])
    stage.cluster.bookie_settings = {**stage.cluster.bookie_settings, **settings}


def settings_of(
    kind: type[ClientConfig] | type[RecoveryConfig] | type[BookieConfig], options: dict[str, str]
) -> dict[str, object]:
    """The options of a step as fields of a configuration. Raises `ScenarioFailure`."""
    defaults = {each.name: each.default for each in dataclasses.fields(kind)}
    for name in options:
        if name not in defaults:
            raise ScenarioFailure(f"there is no setting {name}; expected one of {', '.join(defaults)}")
    return {name: _setting(defaults[name], text) for name, text in options.items()}


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


@step("copy MESSAGES", "deliver the next one of each peer, and hold a second copy until `release`")
async def copy(stage: Stage, given: Given) -> None:
    _add_rule(stage, "copy", given)


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
    assert stage.record is not None
    body = foreign_replicas.package(stage.record, stage.ledger, given["number"], given["number"] - 1)
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


@step("lose BOOKIES", "their processes die, and nobody starts them again")
async def lose_bookies(stage: Stage, given: Given) -> None:
    for name in given["bookies"]:
        stage.bookie(name)
        stage.cluster.lose_bookie(name, PROCESS_DIES)


@step("power fails at BOOKIES", "what was not synced is lost; their peers learn nothing")
async def power_fails(stage: Stage, given: Given) -> None:
    _crash(stage, given, POWER_FAILS, is_silent=True)


@step("wipe BOOKIES", "their disks are replaced by empty ones, while they are down")
async def wipe(stage: Stage, given: Given) -> None:
    for name in given["bookies"]:
        if stage.bookie(name).is_up:
            raise ScenarioFailure(f"{name} is up")
        stage.wipe(name)


@step("restore BOOKIES", "their old disks are put back")
async def restore(stage: Stage, given: Given) -> None:
    for name in given["bookies"]:
        if stage.bookie(name).is_up or name not in stage.old_disks:
            raise ScenarioFailure(f"{name} is up, or was not wiped")
        stage.bookie(name).disk = stage.old_disks.pop(name)


@step("refuse to start BOOKIES", "each of them finds that it must not start")
async def refuse_to_start(stage: Stage, given: Given) -> None:
    for name in given["bookies"]:
        bookie, problems = stage.bookie(name), len(stage.cluster.problems)
        await stage.cluster.start_bookie(name)
        if not bookie.is_lost:
            raise ScenarioFailure(f"{name} {'has started' if bookie.is_up else 'failed for another reason'}")
        await asyncio.sleep(0)  # Its process ends, and its supervisor would start it again.
        if bookie.restart is not None:
            bookie.restart.cancel()
            bookie.restart = None
        bookie.is_lost = False
        del stage.cluster.problems[problems:]


@step("crash CLIENT after NUMBER messages", "its process dies when it has sent or got so many; that one still passes")
async def crash_after(stage: Stage, given: Given) -> None:
    name = given["client"]

    def crash() -> None:
        stage.cluster.kill_client(host_of(name))

    stage.messages.countdowns.append(Countdown(name, given["number"], crash))


@step("break CLIENT after NUMBER messages", "then all its connections break")
async def break_after(stage: Stage, given: Given) -> None:
    network, host = stage.cluster.network, host_of(given["client"])

    def cut_all() -> None:
        for transport in network.connections(host):
            network.cut(transport)

    stage.messages.countdowns.append(Countdown(given["client"], given["number"], cut_all))


@step("power fails at BOOKIE after NUMBER messages", "when it has sent or got so many")
async def power_fails_after(stage: Stage, given: Given) -> None:
    name = given["bookie"]

    def fail() -> None:
        stage.cluster.crash_bookie(name, POWER_FAILS, is_silent=False, restart_after_s=1.0)

    stage.messages.countdowns.append(Countdown(name, given["number"], fail))


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
