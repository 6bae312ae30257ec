"""Interception of messages between clients, bookies and the metadata store: hold, lose, repeat, answer or spoil them.

`Interception` stands between the sockets of a simulated network and the wire, and between clients and the store. It
splits each direction of a connection into frames, because one write may contain several, and decodes each frame with
the production codecs. A frame without a matching rule passes at once. Held messages leave the stream: later messages
overtake them, as if the bookie were slow with just that request. A connection with held messages learns of its end only
after they were released, so a request of a dead client or a broken connection may still take effect.

Source: client-protocol 8.1 (the network model).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from bookies.errors import MetadataError, Status
from bookies.lab.sim.scenario.scenario_wire import key_of, kinds_of, pack_answer
from bookies.lab.sim.world import Trace
from bookies.lab.sim.world.loop import SimulationError
from bookies.lab.sim.world.network import SimNetwork, SimTransport
from bookies.metadata.interface.driver import Versioned
from bookies.metadata.shared.nodes import LOCKS, MARKS
from bookies.wire.client import ResponseDecoder
from bookies.wire.framing import FrameReader
from bookies.wire.messages import (
    Request,
)
from bookies.wire.server import RequestDecoder

if TYPE_CHECKING:
    from bookies.lab.sim.world import SimClient
    from bookies.lab.sim.world.network import Pipe

STORE = "store"
FRAME_SIZE_MAX = 1 << 24
LEDGER_KINDS = {  # operation of a session -> name of the message
    "create_ledger": "create",
    "read_ledger": "read",
    "current_ledgers": "check",
    "write_ledger": "write",
    "delete_ledger": "delete",
}
NODE_OPERATIONS = {  # method of auto-recovery's nodes -> operation
    "create": "create_node",
    "write": "write_node",
    "delete": "delete_node",
    "create_ephemeral": "hold_node",
    "release": "release_node",
}
NODE_KINDS = {  # (operation, places of auto-recovery) -> name of the message
    ("create_node", MARKS): "mark",
    ("write_node", MARKS): "mark",
    ("delete_node", MARKS): "unmark",
    ("hold_node", LOCKS): "lock",
    ("release_node", LOCKS): "unlock",
}


class Message(Struct, frozen=True):
    """One request or answer. `kinds`: all its names, the most precise first. `entry_id`: -1: about no single entry."""

    client: str
    peer: str
    kinds: tuple[str, ...]
    entry_id: int
    is_answer: bool
    status: str = ""

    def __str__(self) -> str:
        entry = f" {self.entry_id}" if self.entry_id >= 0 else ""
        arrow = "<-" if self.is_answer else "->"
        return f"{self.client} {self.kinds[0]}{entry} {arrow} {self.peer}{' ' + self.status if self.status else ''}"


class Pattern(Struct, frozen=True):
    """Selection of messages. `first`, `last`: entries; None: any."""

    client: str
    kind: str
    first: int | None
    last: int | None
    is_answer: bool
    peers: tuple[str, ...]

    def __str__(self) -> str:
        entries = "" if self.first is None else f" {self.first}" if self.first == self.last else f" {self.first}.."
        entries += str(self.last) if self.last not in (self.first, None) else ""
        return f"{self.client} {self.kind}{entries} {'<-' if self.is_answer else '->'} {' '.join(self.peers)}"

    def fits(self, message: Message) -> bool:
        return (
            message.client == self.client
            and message.is_answer == self.is_answer
            and message.peer in self.peers
            and (self.kind == "any" or self.kind in message.kinds)
            and (self.first is None or message.entry_id >= self.first)
            and (self.last is None or message.entry_id <= self.last)
        )

    def without(self, peers: Sequence[str]) -> Pattern:
        kept = tuple(peer for peer in self.peers if peer not in peers)
        return Pattern(self.client, self.kind, self.first, self.last, self.is_answer, kept)


class Rule(Struct):
    """An action for messages that fit a pattern. `is_once`: only for the first message of each peer.

    `status`, `body`: of the action "answer"; a body only with OK. `then`: the function that the action "call" calls
    after such a message has been sent. `caught`: peer -> number of messages.
    """

    action: str
    pattern: Pattern
    is_once: bool = False
    status: Status | None = None
    body: bytes = b""
    then: Callable[[Message], None] | None = None
    caught: dict[str, int] = field(default_factory=dict)

    def wants(self, message: Message) -> bool:
        return self.pattern.fits(message) and not (self.is_once and message.peer in self.caught)


class Countdown(Struct):
    """A call of `act` after a client or bookie has sent or received `left` more messages."""

    host: str
    left: int
    act: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.host} after {self.left} more messages"


class _Held(Struct):
    message: Message
    finish: Callable[[bool], None]  # True: deliver the message; False: lose it


class _Asked(Struct):
    """A request, kept to name its answer."""

    message: Message
    request: Request


class _Conversation:
    """One connection between a client and a bookie."""

    def __init__(self, client: str, bookie: str) -> None:
        self.client, self.bookie = client, bookie
        self.requests = RequestDecoder(FRAME_SIZE_MAX)
        self.frames = {False: FrameReader(FRAME_SIZE_MAX), True: FrameReader(FRAME_SIZE_MAX)}  # by "is an answer"
        self.asked: dict[tuple[object, ...], _Asked] = {}
        self.answers: ResponseDecoder | None = None

    def decode_request(self, frame: bytes) -> tuple[Message, Request]:
        (request,) = self.requests.feed(frame)
        kinds, entry_id = kinds_of(request)
        message = Message(self.client, self.bookie, kinds, entry_id, is_answer=False)
        self.asked[key_of(request)] = _Asked(message, request)
        return message, request

    def decode_answer(self, frame: bytes) -> Message:
        if self.answers is None:
            self.answers = ResponseDecoder("v2" if self.requests.is_v2 else "v3", FRAME_SIZE_MAX)
        (response,) = self.answers.feed(frame)
        asked = self.asked.get(key_of(response))
        kinds, entry_id = (asked.message.kinds, asked.message.entry_id) if asked else (("unasked",), -1)
        status: Status = response.status
        return Message(self.client, self.bookie, kinds, entry_id, is_answer=True, status=status.value)


class Interception:
    """All rules, all messages so far, and all held messages. `name_of`: returns a host's name in the scenario."""

    def __init__(self, network: SimNetwork, trace: Trace, name_of: Callable[[str], str]) -> None:
        self.rules: list[Rule] = []
        self.countdowns: list[Countdown] = []
        self.seen: list[Message] = []
        self._network = network
        self._trace = trace
        self._name_of = name_of
        self._held: list[_Held] = []
        self._records: dict[int, Versioned] = {}  # by version, of the one ledger
        self._join_earlier = network.on_join
        network.on_join = self._joined

    # -- calls of the scenario's steps ---------------------------------------------------------------------------
    def held(self, pattern: Pattern) -> list[Message]:
        return [held.message for held in self._held if pattern.fits(held.message)]

    def release(self, pattern: Pattern, *, is_lost: bool = False, is_one: bool = False) -> list[str]:
        """Deliver held messages in the order in which they were sent. Return the peers without a held message.

        `is_lost`: lose the messages instead. `is_one`: only the oldest message. Otherwise a rule with the same pattern
        ends for these peers.
        """
        chosen = [held for held in self._held if pattern.fits(held.message)]
        if is_one:
            del chosen[1:]
        self._held = [held for held in self._held if held not in chosen]
        for rule in [] if is_one else self.rules:
            if rule.action == "hold" and rule.pattern.without(rule.pattern.peers) == pattern.without(pattern.peers):
                rule.pattern = rule.pattern.without(pattern.peers)
        for held in chosen:
            self._trace.note("script", f"{'loses' if is_lost else 'releases'} {held.message}")
            held.finish(not is_lost)
        return [peer for peer in pattern.peers if all(held.message.peer != peer for held in chosen)]

    def end(self) -> list[str]:
        """Deliver all held messages and end all rules. Return the rules that a message never matched."""
        idle = [
            f"{rule.action} {rule.pattern}"
            for rule in self.rules
            if any(peer not in rule.caught for peer in rule.pattern.peers)
        ]
        idle += [str(countdown) for countdown in self.countdowns if countdown.left > 0]
        self.countdowns.clear()
        self.rules.clear()
        all_held, self._held = self._held, []
        for held in all_held:
            held.finish(True)
        return idle

    # -- streams -------------------------------------------------------------------------------------------------
    def _joined(self, near: SimTransport, far: SimTransport) -> None:
        if self._join_earlier is not None:
            self._join_earlier(near, far)
        conversation = _Conversation(self._name_of(near.host), self._name_of(far.host))
        requests = _Stream(near.outgoing)
        answers = _Stream(far.outgoing)
        self._tap(conversation, requests, answers, is_answer=False)
        self._tap(conversation, answers, requests, is_answer=True)

    def _tap(self, conversation: _Conversation, stream: _Stream, reverse: _Stream, *, is_answer: bool) -> None:
        def send(data: bytes) -> None:
            buffer, starts = conversation.frames[is_answer].feed(data)
            for start, stop in pairwise(starts):
                self._pass(conversation, stream, reverse, buffer[start:stop], is_answer)

        stream.tap = send

    def _pass(
        self, conversation: _Conversation, stream: _Stream, reverse: _Stream, frame: bytes, is_answer: bool
    ) -> None:
        request: Request | None = None
        if is_answer:
            message = conversation.decode_answer(frame)
        else:
            message, request = conversation.decode_request(frame)
        rule = self._rule_for(message)
        if rule is None:
            stream.carry(frame)
        elif rule.action in ("hold", "copy"):
            if rule.action == "copy":
                stream.carry(frame)
            stream.hold()
            self._held.append(_Held(message, lambda is_kept: stream.release(frame if is_kept else b"")))
        elif rule.action == "repeat":
            stream.carry(frame)
            stream.carry(frame)
        elif rule.action == "spoil":
            stream.carry(frame[:-1] + bytes((frame[-1] ^ 1,)))
        elif rule.action == "break":
            self._network.cut(stream.pipe.source)
        elif rule.action == "call":
            assert rule.then is not None
            stream.carry(frame)
            rule.then(message)
        elif rule.action == "answer":
            assert request is not None
            assert rule.status is not None
            self.seen.append(replace(message, is_answer=True, status=rule.status.value))
            reverse.carry(pack_answer(request, rule.status, rule.body))
        else:
            assert rule.action == "lose"

    def _rule_for(self, message: Message) -> Rule | None:
        self.seen.append(message)
        for countdown in self.countdowns:
            if countdown.host in (message.client, message.peer):
                countdown.left -= 1
                if countdown.left == 0:
                    self._network.loop.world.copy().run(countdown.act)
        for rule in self.rules:
            if rule.wants(message):
                rule.caught[message.peer] = rule.caught.get(message.peer, 0) + 1
                self._trace.note("script", f"{rule.action}: {message}")
                return rule
        return None

    # -- the metadata store --------------------------------------------------------------------------------------
    def watch_store(self, name: str, client: SimClient) -> None:
        """Intercept a client's requests before they take effect in the store, and the store's replies.

        A held request takes effect when it is released, even if the client is dead by then.
        """

        async def on_arrival(operation: str, arguments: Sequence[Any]) -> None:
            kind = LEDGER_KINDS.get(operation)
            if operation in NODE_OPERATIONS.values():
                kind = _node_kind(operation, str(arguments[1][0].key.name))
            if kind is not None:
                await self._pass_store(Message(name, STORE, (kind,), -1, is_answer=False))

        client.driver.on_arrival = on_arrival
        driver: Any = client.driver
        for method, kind in LEDGER_KINDS.items():
            setattr(driver, method, self._ledger_gate(name, kind, getattr(driver, method)))
        nodes: Any = driver.recovery.nodes
        for method, operation in NODE_OPERATIONS.items():
            setattr(nodes, method, self._node_gate(name, operation, getattr(nodes, method)))

    def _node_gate(self, name: str, operation: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method of auto-recovery's store so that its replies can be intercepted."""

        async def answered(place: str, *arguments: Any) -> Any:
            kind = _node_kind(operation, place)
            result = await call(place, *arguments)
            if kind is not None:
                await self._pass_store(Message(name, STORE, (kind,), -1, True, "OK"))
            return result

        return answered

    def _ledger_gate(self, name: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def answered(*arguments: Any) -> Any:
            try:
                result = await call(*arguments)
            except MetadataError as error:
                await self._pass_store(Message(name, STORE, (kind,), -1, True, type(error).__name__))
                raise
            if isinstance(result, Versioned):
                self._records[result.version] = result
            is_old = await self._pass_store(Message(name, STORE, (kind,), -1, True, "OK"))
            if is_old:
                assert isinstance(result, Versioned)
                return self._records[max(version for version in self._records if version < result.version)]
            return result

        return answered

    async def _pass_store(self, message: Message) -> bool:
        """Apply the rules to a message to or from the store. Return whether to answer from a lagging replica.

        Raises `MetadataError` if the message is lost.
        """
        rule = self._rule_for(message)
        if rule is None:
            return False
        if rule.action == "age":
            return True
        if rule.action == "hold":
            waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._held.append(_Held(message, lambda is_kept: None if waiting.done() else waiting.set_result(is_kept)))
            if await waiting:
                return False
        elif rule.action != "lose":
            raise SimulationError(
                f"{rule.action} {rule.pattern}: only hold and lose apply to the metadata store's messages"
            )
        raise MetadataError("the connection to the metadata store broke; the request may or may not have been done")


def _node_kind(operation: str, place: str) -> str | None:
    return NODE_KINDS.get((operation, place.partition("/")[0] + "/"))


class _Stream:
    """Gate of one direction of a connection. It does not end while a message sent on it is held."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.carry = pipe.carry
        self.tap: Callable[[bytes], None] = pipe.carry  # called with all data that is sent
        self._held = 0
        self._endings: list[tuple[BaseException | None, float]] = []
        pipe.gate = self

    def send(self, data: bytes) -> None:
        self.tap(data)

    def hold(self) -> None:
        self._held += 1

    def release(self, frame: bytes) -> None:
        self._held -= 1
        if frame:
            self.carry(frame)
        if not self._held:
            endings, self._endings = self._endings, []
            for error, delay_s in endings:
                self.pipe.carry_end(error, delay_s)

    def end(self, error: BaseException | None, delay_s: float) -> None:
        if self._held:
            self._endings.append((error, delay_s))
        else:
            self.pipe.carry_end(error, delay_s)
