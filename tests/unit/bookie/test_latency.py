"""Stages of adds and reads sum up to their durations, and slow ones are kept with what ran meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bookies.bookie.latency import LEDGERS_MAX, SAMPLED, Latency, is_timed
from bookies.config import BookieConfig
from bookies.lab.sim.world.cluster import SimClock
from bookies.lab.sim.world.loop import SimLoop
from bookies.protocol.latency import Report
from bookies.runtime.activities import Activities
from bookies.runtime.events import Events
from bookies.wire.messages import BatchReadRequest, ReadRequest

from .conftest import World, adds


def latency_of(bound_ms: int = 100) -> Latency:
    clock = SimClock(SimLoop(), 0)
    return Latency(BookieConfig(slow_request_ms=bound_ms), clock, Activities(clock.monotonic), Events("bookie", clock))


def sums(distributions: Any) -> dict[str, tuple[int, float]]:
    return {stage: (part.count, round(part.sum, 6)) for stage, part in distributions.items() if part.count}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (BookieConfig(), False),
        (BookieConfig(http_port=0), True),
        (BookieConfig(slow_request_ms=5), True),
        (BookieConfig(spans=True), True),
    ],
)
def test_requests_are_timed_on_request(config: BookieConfig, expected: bool) -> None:
    assert is_timed(config) is expected


def test_an_add_has_the_stages_of_its_group() -> None:
    latency = latency_of()
    latency.group_durable(1.0, 3.0, 4096)
    latency.added(0.5, 3.25, 10, 1000, 7, "peer")
    assert sums(latency.adds) == {"queue": (10, 5.0), "sync": (10, 20.0), "answer": (10, 2.5)}
    (request,) = latency.slow.since(0)
    assert dict(request.stages) == {"queue": 0.5, "sync": 2.0, "answer": 0.25}
    assert request.facts == {"ledger": 7, "entries": 10, "peer": "peer", "group_size": 4096}
    latency.group_durable(4.0, 4.5, 4096)
    latency.added(3.98, 4.51, 1, 1, 7, "peer")
    latency.added(3.94, 4.52, 3, 1, 7, "peer")
    latency.group_durable(5.0, 5.5, 4096)
    assert sums(latency.adds) == {"queue": (14, 5.2), "sync": (14, 22.0), "answer": (14, 2.57)}
    assert latency.slow.count == 3


def test_a_read_has_stages_or_came_from_memory() -> None:
    latency = latency_of()
    latency.log_read(1.0, 1.5, 3.0)
    latency.read_ended(0.75, 3.25, 7, 4, "peer")
    latency.log_read(1.0, 1.5, 3.0)  # of a client that has disconnected
    latency.read_ended(5.0, 5.01, 7, 4, "peer")
    latency.log_read(5.0, 5.5, 6.0)
    latency.forget_read()
    latency.read_ended(4.9, 4.91, 7, 4, "peer")
    latency.read_now(1.0, 1.25, 4)
    assert sums(latency.reads) == {
        "budget": (1, 0.25), "index": (1, 0.5), "log": (1, 1.5), "answer": (1, 0.25), "memory": (6, 1.02)
    }  # fmt: skip
    assert [request.kind for request in latency.slow.since(0)] == ["read"]


def test_what_holds_up_all_requests_is_kept() -> None:
    latency = latency_of()
    latency.paused(0.0, 2.0, "cache")
    latency.paused(2.0, 2.05, "intake")
    latency.stalled(0.0, 0.05, {"loop": 0.05})
    latency.stalled(0.0, 0.5, {"loop": 0.5})
    latency.metadata_answered("read_ledger", 0.0, 0.05)
    latency.metadata_answered("read_ledger", 0.0, 3.0)
    kept = [
        (request.kind, dict(request.stages), {name: round(part, 6) for name, part in request.meanwhile.items()})
        for request in latency.slow.since(0)
    ]
    assert kept == [
        ("pause", {"cache": 2.0}, {}),
        ("stall", {"loop": 0.5}, {"cache": 0.5}),
        ("metadata", {"metadata": 3.0}, {"cache": 2.0, "intake": 0.05}),
    ]


def test_the_shares_of_ledgers_are_sampled_in_bounded_memory() -> None:
    latency = latency_of()
    for number in range(SAMPLED * (LEDGERS_MAX + 10)):
        latency.added(0.0, 0.01, 1, 100 if number % 80 else 10_000, number, "peer")
    report = latency.report("b1", 600.0)
    assert Report.of_facts(json.loads(json.dumps(report))).process == "b1"
    assert max(report["ledger_shares"].values()) < 0.1
    assert len(report["ledger_shares"]) == 5


def test_the_stages_of_a_bookies_requests_sum_up_to_their_durations(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start(slow_request_ms=1)
        latency, served = server.latency, server.served
        assert latency is not None
        assert served is not None
        client = await world.connect(server)
        for number in range(5):
            await client.add(adds(1, range(number * 20, number * 20 + 20)))
        await server.store.checkpoint()
        await client.ask(ReadRequest(2, 0, 1, 3))
        await client.ask(BatchReadRequest(2, 5, 1, 0, 30, 10_000))
        for outcomes, stages in ((served.adds, latency.adds), (served.reads, latency.reads)):
            total = sum(part.sum for part in stages.values())
            assert total == pytest.approx(outcomes.succeeded.sum, rel=0.05)
        assert latency.adds["sync"].count == 100
        assert latency.reads["answer"].count + latency.reads["memory"].count == 2
        client.transport.close()

    world.run(body)
