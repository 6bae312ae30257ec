"""Stream connections between participants, with delays, cut and half-open connections, and partitions.

On one connection bytes arrive in order, once, and in chunks of any size. Data is lost only when a connection breaks:
each direction then loses an unknown suffix of its bytes in flight, and each side learns of the break at its own time or
never. Bytes that are in flight when their sender learns of the break may arrive late, after requests sent on the next
connection. Real networks behave this way, and a bookie must survive it.

A host is a participant's name. A partition blocks one direction between two hosts: data sent meanwhile waits, as with
TCP's retransmission, and arrives when the partition heals, unless a fault cuts the connection first.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from random import Random
from typing import Any, Protocol

from msgspec import Struct, field

from bookies.lab.sim.world.loop import Crashed, Participant, SimLoop, current_participant
from bookies.lab.sim.world.trace import Trace
from bookies.runtime.ports import Buffer, Listener

SOCKET_BUFFER_SIZE = 256 * 1024  # bytes in flight that count as sent
CONNECT_PATIENCE_S = 20.0  # a connect without an answer fails after this time
WRITE_HIGH, WRITE_LOW = 64 * 1024, 16 * 1024


def _reset_error() -> ConnectionResetError:
    return ConnectionResetError(104, "connection reset by peer")


class Gate(Protocol):
    """Receiver of the data and the end of one direction of a connection. It passes them to the pipe, or does not."""

    def send(self, data: bytes) -> None: ...

    def end(self, error: BaseException | None, delay_s: float) -> None: ...


class Pipe:
    """One direction of a connection: chunks in flight, each with its arrival time. `gate`: decides what enters."""

    def __init__(self, network: SimNetwork, source: SimTransport, target: SimTransport) -> None:
        self.chunks: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.source, self.target = source, target
        self.ending: tuple[float, BaseException | None] | None = None  # after all chunks: end of file, or a reset
        self.is_silent = False  # broken: new data is dropped; data in flight arrives
        self.is_paused = False  # the target does not read
        self.held_until = 0.0  # virtual time before which no data arrives
        self.on_write: Callable[[Buffer], None] | None = None  # called with all data that the source sends
        self.on_read: Callable[[int], None] | None = None  # called with the number of bytes the target receives next
        self._network = network
        self.gate: Gate | None = None
        self._last_arrival = 0.0
        self._is_scheduled = False

    def send(self, data: bytes) -> None:
        (self.gate.send if self.gate is not None else self.carry)(data)

    def carry(self, data: bytes) -> None:
        """Send data that has passed the gate."""
        if self.is_silent or self.ending is not None:
            return
        network = self._network
        if len(data) > 1 and network.random.random() < network.conditions.split_probability:
            cut = network.random.randrange(1, len(data))
            self._append(data[:cut])
            self._append(data[cut:])
        else:
            self._append(data)

    def _append(self, data: bytes) -> None:
        self._last_arrival = max(self._last_arrival, self._network.arrival_time(self.source.host, self.target.host))
        self.chunks.append((self._last_arrival, data))
        self.size += len(data)
        self.schedule()

    def end(self, error: BaseException | None, delay_s: float = 0.0) -> None:
        """Report the end to the target, after all data in flight. `error`: None: end of file; else why it broke."""
        (self.gate.end if self.gate is not None else self.carry_end)(error, delay_s)

    def carry_end(self, error: BaseException | None, delay_s: float) -> None:
        """Report an end that has passed the gate."""
        if self.ending is None and not self.is_silent:
            arrival = self._network.arrival_time(self.source.host, self.target.host) + delay_s
            self._last_arrival = max(self._last_arrival, arrival)
            self.ending = (self._last_arrival, error)
            self.schedule()

    def reset(self) -> None:
        """Report the break of a silently broken pipe to its target, once."""
        if self.is_silent and self.ending is None:
            self.is_silent = False
            self.end(_reset_error())

    def drop_suffix(self) -> None:
        """Lose an unknown suffix of the data in flight."""
        if self.chunks:
            keep = self._network.random.randint(0, self.size)
            kept: deque[tuple[float, bytes]] = deque()
            size = 0
            for when, data in self.chunks:
                if size >= keep:
                    break
                kept.append((when, data[: keep - size]))
                size += len(data[: keep - size])
            self.chunks, self.size = kept, size

    def end_hold(self) -> None:
        """Deliver data that `SimNetwork.hold` holds back."""
        if self.held_until > self._network.loop.time():
            self._is_scheduled = False  # The scheduled delivery would be too late. When it runs, it has no effect.
            self.held_until = 0.0
            self.schedule()

    def schedule(self) -> None:
        if self._is_scheduled or self._network.is_blocked(self.source.host, self.target.host):
            return
        if self.chunks and not self.is_paused:
            when = self.chunks[0][0]
        elif self.ending is not None and not self.chunks:
            when = self.ending[0]
        else:
            return
        self._is_scheduled = True
        self._network.loop.call_at(max(when, self.held_until), self._deliver, context=self._network.loop.world)

    def _deliver(self) -> None:
        """Deliver all data that has arrived by now, as one piece."""
        self._is_scheduled = False
        network = self._network
        if network.is_blocked(self.source.host, self.target.host):
            return  # `heal` schedules it again.
        now = network.loop.time()
        if now < self.held_until:
            pass  # The hold began after this delivery was scheduled.
        elif self.chunks and not self.is_paused:
            parts = []
            while self.chunks and self.chunks[0][0] <= now:
                parts.append(self.chunks.popleft()[1])
            data = b"".join(parts)
            self.size -= len(data)
            if data:
                network.note_delivery(self.source, self.target, data)
                self.target.receive(data)
                self.source.note_drained()
                if network.on_delivery is not None:
                    network.on_delivery(self.source.host, self.target.host)
        elif not self.chunks and self.ending is not None and self.ending[0] <= now:
            error = self.ending[1]
            self.is_silent = True
            self.target.receive_end(error)
            return
        self.schedule()


class SimTransport(asyncio.Transport):
    """One side of a connection. Its protocol's callbacks run as the participant that owns the side."""

    def __init__(self, network: SimNetwork, host: str, number: int, context: Context) -> None:
        super().__init__()
        self.host = host
        self.number = number
        self.owner = current_participant()
        self.outgoing: Pipe
        self.incoming: Pipe
        self._network = network
        self._context = context
        self._protocol: Any = None
        self._is_closing = False
        self._is_lost = False
        self._is_ended = False
        self._is_writing_paused = False
        self._limits = WRITE_LOW, WRITE_HIGH
        self._addresses: tuple[tuple[str, int], tuple[str, int]] = ((host, 0), ("", 0))

    def __repr__(self) -> str:
        state = "lost" if self._is_lost else "closing" if self._is_closing else "open"
        return f"<SimTransport {self.number} of {self.host} {state}>"

    def attach(self, protocol: asyncio.BaseProtocol, own: tuple[str, int], peer: tuple[str, int]) -> None:
        self._protocol = protocol
        self._addresses = (own, peer)
        # Not deferred: data may have arrived while the owner was paused, and must be received after this call.
        protocol.connection_made(self)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        self._network.loop.call_soon(function, *arguments, context=self._context)

    # -- from the network ----------------------------------------------------------------------------------------
    def receive(self, data: bytes) -> None:
        if not self._is_closing and not self._is_lost:
            self._call(self._hand_over, data)

    def _hand_over(self, data: bytes) -> None:
        if self._is_closing or self._is_lost:
            return
        if self.incoming.on_read is not None:
            self.incoming.on_read(len(data))
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.data_received(data)
            return
        while data:
            buffer = memoryview(self._protocol.get_buffer(len(data)))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self._protocol.buffer_updated(count)
            data = data[count:]

    def receive_end(self, error: BaseException | None) -> None:
        if error is not None:
            self._call(self._lose, error)
        elif not self._is_closing:
            self._call(self._hand_over_end)

    def _hand_over_end(self) -> None:
        if not self._is_closing and not self._protocol.eof_received():
            self.close()

    def note_drained(self) -> None:
        """React to the arrival of data that this side has sent: resume writing, or finish closing."""
        left = self.get_write_buffer_size()
        if self._is_writing_paused and left <= self._limits[0]:
            self._is_writing_paused = False
            if not self._is_lost:
                self._call(self._protocol.resume_writing)
        if self._is_closing and not self._is_lost and left == 0:
            self._call(self._lose, None)

    def _lose(self, error: BaseException | None) -> None:
        """Report the end of the connection to the protocol, once."""
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._network.forget(self)
        if error is None:
            self.outgoing.end(None)
        else:
            self.outgoing.is_silent = True
        self._protocol.connection_lost(error)

    def vanish(self) -> None:
        """Stop all deliveries to this side: its owner is dead."""
        self._is_lost = self._is_closing = True
        self._network.forget(self)

    # -- asyncio.Transport ---------------------------------------------------------------------------------------
    def write(self, data: Buffer) -> None:
        if self.owner is not None and not self.owner.is_alive:
            return
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._is_closing or self._is_ended:
            return
        if data:
            if self.outgoing.on_write is not None:
                self.outgoing.on_write(data)
            self.outgoing.send(bytes(data))
            network, probability = self._network, self._network.conditions.repeat_probability
            if probability > 0 and network.random.random() < probability:
                network.repeat_later(self, bytes(data))
            if not self._is_writing_paused and self.get_write_buffer_size() > self._limits[1]:
                self._is_writing_paused = True
                self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self._is_ended = True
        self.outgoing.end(None)

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self.incoming.is_paused = True

    def resume_reading(self) -> None:
        self.incoming.is_paused = False
        self.incoming.schedule()

    def is_reading(self) -> bool:
        return not self.incoming.is_paused and not self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        high = high if high is not None else (4 * low if low is not None else WRITE_HIGH)
        self._limits = (low if low is not None else high // 4), high

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._limits

    def get_write_buffer_size(self) -> int:
        return max(0, self.outgoing.size - SOCKET_BUFFER_SIZE)

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if self.get_write_buffer_size() == 0:
            self._call(self._lose, None)

    def abort(self) -> None:
        if self._is_lost:
            return
        self._is_closing = True
        self.outgoing.drop_suffix()
        self.outgoing.end(_reset_error())
        self._call(self._lose, None)

    def is_closing(self) -> bool:
        return self._is_closing

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"sockname": self._addresses[0], "peername": self._addresses[1]}.get(name, default)


class SimListener:
    """A listening address. After it is closed, connections are refused."""

    def __init__(self, network: SimNetwork, address: tuple[str, int], factory: Callable[[], asyncio.BaseProtocol]):
        self.address = address
        self.factory = factory
        self.context = copy_context()
        self.owner = current_participant()
        self._network = network

    def accept(self, transport: SimTransport, peer: tuple[str, int]) -> None:
        transport.attach(self.factory(), self.address, peer)

    def close(self) -> None:
        self._network.close_listener(self)

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)


class Conditions(Struct):
    """How the network treats data.

    `delay_ms`: minimum and mean additional one-way delay. `split_probability`: of a write that arrives in two parts.
    `stall_probability`: of a write that takes about `stall_ms` longer and delays all later data on its connection.
    `repeat_probability`: of messages that arrive a second time, perhaps much later. `slow`: host -> factor of its
    delays. `held_new`: host -> virtual time before which no data arrives on its new connections.
    """

    delay_ms: tuple[float, float] = (0.05, 0.3)
    split_probability: float = 0.1
    stall_probability: float = 0.0
    stall_ms: float = 300.0
    repeat_probability: float = 0.0
    slow: dict[str, float] = field(default_factory=dict)
    held_new: dict[str, float] = field(default_factory=dict)

    def heal(self) -> None:
        """End stalls, repetitions, slow hosts and holds."""
        self.stall_probability = self.repeat_probability = 0.0
        self.slow.clear()
        self.held_new.clear()


class SimNetwork:
    """All hosts and connections of one simulation. Each participant uses it through `port(host)`."""

    def __init__(self, loop: SimLoop, trace: Trace, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.conditions = Conditions()
        self.statistics = {"connections": 0, "refused": 0, "cut": 0, "bytes": 0}
        self.on_join: Callable[[SimTransport, SimTransport], None] | None = None  # called for each new connection
        self.on_delivery: Callable[[str, str], None] | None = None  # called with (source, target) after each delivery
        self._trace = trace
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._transports: dict[int, SimTransport] = {}
        self._blocked: dict[tuple[str, str], int] = {}
        self._healing: list[asyncio.Future[None]] = []
        self._half_open: list[Pipe] = []  # broken, and the target does not know yet
        self._next_number = 0
        self._next_port = 40_000

    def port(self, host: str) -> SimNetworkPort:
        return SimNetworkPort(self, host)

    # -- faults --------------------------------------------------------------------------------------------------
    def block(self, source: str, target: str) -> None:
        """Hold all data from `source` to `target` until `unblock`. Blocks are counted."""
        self._blocked[source, target] = self._blocked.get((source, target), 0) + 1

    def unblock(self, source: str, target: str) -> None:
        left = self._blocked.get((source, target), 0) - 1
        if left > 0:
            self._blocked[source, target] = left
            return
        self._blocked.pop((source, target), None)
        self._release()

    def heal(self) -> None:
        """End all partitions, slow hosts, stalls and holds, and report all half-open connections."""
        self.conditions.heal()
        for transport in self._transports.values():
            transport.incoming.end_hold()
            transport.outgoing.end_hold()
        self._blocked.clear()
        self._release()
        self.report_half_open()

    def _release(self) -> None:
        for transport in list(self._transports.values()):
            transport.incoming.schedule()
            transport.outgoing.schedule()
        waiting, self._healing = self._healing, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def slow_down(self, host: str, factor: float) -> None:
        """Multiply the delays from and to a host. `factor`: 1 restores the normal delays."""
        self.conditions.slow[host] = factor

    def repeat_later(self, transport: SimTransport, data: bytes) -> None:
        """Send `data` a second time, after or between later frames, if it consists of whole frames."""
        at = 0
        while at + 4 <= len(data):
            at += 4 + int.from_bytes(data[at : at + 4], "big")
        if at == len(data):
            delay_s = self.random.choice((0.0, 0.01, 0.5)) * self.random.random()
            self.loop.call_later(delay_s, transport.outgoing.send, data, context=self.loop.world)

    def hold(self, pipe: Pipe, duration_s: float) -> None:
        """Hold all data of one direction of one connection for `duration_s`."""
        pipe.held_until = max(pipe.held_until, self.loop.time() + duration_s)

    def hold_new(self, host: str, duration_s: float) -> None:
        """Hold the data that a host sends on connections that it opens from now on, for `duration_s`."""
        self.conditions.held_new[host] = self.loop.time() + duration_s

    def connections(self, host: str | None = None) -> list[SimTransport]:
        """Return all open transports, oldest first. `host`: only those of this host."""
        return [transport for transport in self._transports.values() if host is None or transport.host == host]

    def cut(self, transport: SimTransport, *, is_half_open: bool = False, news_s: float = 0.1) -> None:
        """Break a connection.

        `is_half_open`: the other side does not learn of the break, and the data it sends is dropped. `news_s`: mean
        time until a side learns of the break.
        """
        other = transport.outgoing.target
        self.statistics["cut"] += 1
        self._trace.note("network", f"cut {transport.host} - {other.host}{' half-open' if is_half_open else ''}")
        for pipe in (transport.outgoing, transport.incoming):
            pipe.drop_suffix()
            pipe.source.note_drained()
        transport.incoming.end(_reset_error(), self.random.expovariate(1 / news_s))
        if is_half_open:
            self._break_silently(transport.outgoing)
        else:
            transport.outgoing.end(_reset_error(), self.random.expovariate(1 / news_s))

    def _break_silently(self, pipe: Pipe) -> None:
        pipe.is_silent = True
        self._half_open.append(pipe)

    def report_half_open(self, host: str | None = None) -> None:
        """Report half-open connections (to `host`) to the sides that do not know of the break, as a keep-alive does."""
        reported = [pipe for pipe in self._half_open if host is None or pipe.source.host == host]
        self._half_open = [pipe for pipe in self._half_open if pipe not in reported]
        for pipe in reported:
            pipe.reset()

    def crash(self, participant: Participant, *, is_silent: bool) -> None:
        """Break all connections of a dead participant. `is_silent` (power failure): its peers do not notice."""
        for transport in list(self._transports.values()):
            if transport.owner is participant:
                transport.outgoing.drop_suffix()
                if is_silent:
                    self._break_silently(transport.outgoing)
                else:
                    transport.outgoing.end(_reset_error())
                transport.incoming.is_silent = True
                transport.vanish()
        for listener in list(self._listeners.values()):
            if listener.owner is participant:
                self.close_listener(listener)

    # -- used by the ports and transports ------------------------------------------------------------------------
    def arrival_time(self, source: str, target: str) -> float:
        conditions = self.conditions
        least, mean = conditions.delay_ms
        factor = max(conditions.slow.get(source, 1.0), conditions.slow.get(target, 1.0))
        delay_ms = factor * (least + self.random.expovariate(1 / mean))
        if self.random.random() < conditions.stall_probability:
            delay_ms += self.random.expovariate(1 / conditions.stall_ms)
        return self.loop.time() + delay_ms / 1000

    def note_delivery(self, source: SimTransport, target: SimTransport, data: bytes) -> None:
        self.statistics["bytes"] += len(data)
        self._trace.mix(b"%.9f %d %d %d" % (self.loop.time(), source.number, len(data), zlib.crc32(data)))

    def forget(self, transport: SimTransport) -> None:
        self._transports.pop(transport.number, None)

    def add_listener(self, listener: SimListener) -> None:
        self._listeners[listener.address] = listener

    def listener_at(self, address: tuple[str, int]) -> SimListener | None:
        return self._listeners.get(address)

    def close_listener(self, listener: SimListener) -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    async def travel(self, source: str, target: str, deadline: float, delay_s: float = 0.0) -> None:
        """Wait for one packet's delay, and for the end of a partition. Raises `TimeoutError` at the deadline."""
        await asyncio.sleep(self.arrival_time(source, target) - self.loop.time() + delay_s)
        while self.is_blocked(source, target):
            future = self.loop.create_future()
            self._healing.append(future)
            try:
                async with asyncio.timeout_at(deadline):
                    await future
            except TimeoutError:
                raise TimeoutError(110, "connection timed out") from None

    def join(self, client: str, client_context: Context, listener: SimListener) -> tuple[SimTransport, SimTransport]:
        """Return both sides of a new connection, not yet attached to their protocols."""
        self.statistics["connections"] += 1
        self._next_number += 2
        near = SimTransport(self, client, self._next_number, client_context)
        far = SimTransport(self, listener.address[0], self._next_number + 1, listener.context)
        far.owner = listener.owner
        near.outgoing = far.incoming = Pipe(self, near, far)
        far.outgoing = near.incoming = Pipe(self, far, near)
        near.outgoing.held_until = self.conditions.held_new.get(client, 0.0)
        self._transports[near.number] = near
        self._transports[far.number] = far
        if self.on_join is not None:
            self.on_join(near, far)
        return near, far


class SimNetworkPort:
    """`runtime.ports.Network` of one host."""

    def __init__(self, network: SimNetwork, host: str) -> None:
        self._network = network
        self._host = host

    async def connect(
        self, host: str, port: int, protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        network = self._network
        deadline = network.loop.time() + CONNECT_PATIENCE_S
        await network.travel(self._host, host, deadline)
        listener = network.listener_at((host, port))
        await network.travel(host, self._host, deadline)
        if listener is None or listener is not network.listener_at((host, port)):
            network.statistics["refused"] += 1
            raise ConnectionRefusedError(111, f"connection to {host}:{port} refused")
        own, peer = (self._host, network.free_port()), (host, port)
        near, far = network.join(self._host, copy_context(), listener)
        network.loop.call_soon(listener.accept, far, own, context=listener.context.copy())
        protocol = protocol_factory()
        near.attach(protocol, own, peer)
        return near, protocol

    async def listen(self, host: str, port: int, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> Listener:
        owner = current_participant()
        if owner is not None and not owner.is_alive:
            raise Crashed
        network = self._network
        address = (self._host, port or network.free_port())
        if network.listener_at(address) is not None:
            raise OSError(98, f"{address[0]}:{address[1]} is in use")
        listener = SimListener(network, address, protocol_factory)
        network.add_listener(listener)
        return listener
