"""A client's metrics in a registry of prometheus_client."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from tests.fakes.world import play

import bookies
from bookies.errors import InvalidArgument


def test_a_registered_client_shows_what_it_did() -> None:
    async def body(world: object) -> None:
        client = await world.client()  # type: ignore[attr-defined]
        registry = CollectorRegistry()
        collector = bookies.metrics.register(client, registry, labels={"role": "test"})
        async with client.create() as ledger:
            await ledger.append_many([b"x"] * 10)
        text = generate_latest(registry).decode()
        samples = {
            sample.name: sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if "quantile" not in sample.labels and sample.labels.get("success") != "false"
        }
        confirmed = samples["bookies_client_entries_confirmed_total"]
        assert (confirmed.value, confirmed.labels) == (10, {"role": "test"})
        assert samples["bookies_client_replicas_sent_total"].value == 30
        traffic = samples["bookies_client_traffic_bytes_total"]
        assert (traffic.labels["nearness"], traffic.value > 0) == ("unknown", True)
        assert samples["bookkeeper_client_ADD_ENTRY_count"].value >= 1
        assert samples["bookies_client_memory_limit_bytes"].value == client.config.memory_limit
        assert samples["bookies_metrics_failed_total"].value == 0
        assert list(parse_openmetrics(generate_openmetrics(registry).decode()))
        registry.unregister(collector)
        assert generate_latest(registry) == b""

    play(body)


def test_two_clients_share_a_registry() -> None:
    async def body(world: object) -> None:
        registry = CollectorRegistry()
        for number in range(2):
            bookies.metrics.register(await world.client(), registry, labels={"client": str(number)})  # type: ignore[attr-defined]
        text = generate_latest(registry).decode()
        assert text.count('bookies_client_connections{client="') == 2

    play(body)


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="expected a client"):
        bookies.metrics.register(object())  # type: ignore[arg-type]
