"""The client of a schema registry: one request for each schema, bounded retries, and sentences."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fakes.registry import FakeRegistry, fake_registry

from bookies.errors import InvalidArgument, SchemaIncompatible, SchemaNotFound, SchemaRegistryFailed
from bookies.formats import registry as module
from bookies.formats.registry import ATTEMPTS, UNKNOWN_MAX, UNKNOWN_S, Registry, opened_registry


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeRegistry, Registry]]:
    monkeypatch.setattr(module, "sleep", lambda seconds: None)
    with fake_registry() as (fake, url):
        yield fake, opened_registry(url, "me:secret")


def test_a_schema_is_asked_for_once(served: tuple[FakeRegistry, Registry]) -> None:
    fake, registry = served
    number = fake.add("orders-value", '"long"')
    assert [registry.schema(number).text for _ in range(3)] == ['"long"'] * 3
    assert fake.requests == [f"GET /schemas/ids/{number}"]
    assert fake.authorization == "Basic bWU6c2VjcmV0"
    assert "secret" not in repr(registry)


def test_the_newest_schema_of_a_subject(served: tuple[FakeRegistry, Registry]) -> None:
    fake, registry = served
    assert registry.latest("a/b") is None
    fake.add("a/b", '"int"')
    fake.add("a/b", "AAAA", "PROTOBUF")
    latest = registry.latest("a/b", "protobuf")
    assert latest is not None
    assert (latest.id, latest.text) == (2, "AAAA")
    with pytest.raises(InvalidArgument, match=r"schema 2 of schema registry .* is one of PROTOBUF"):
        registry.latest("a/b", "avro")
    assert fake.requests[1] == "GET /subjects/a%2Fb/versions/latest?format=serialized"
    registry.schema(2, "protobuf")
    assert len(fake.requests) == 3


def test_registering_checks_the_rule_first(served: tuple[FakeRegistry, Registry]) -> None:
    fake, registry = served
    assert registry.register("s", "avro", '"int"') == 1
    assert registry.register("s", "avro", '"long"') == 2
    requests = len(fake.requests)
    assert registry.register("s", "avro", '"int"') == 1  # Every batch of a stream asks for it.
    assert len(fake.requests) == requests
    fake.refusal = "id: int to string"
    with pytest.raises(SchemaIncompatible, match=r"refuses the schema for subject s: id: int to string\. Write"):
        registry.register("s", "avro", '"string"')
    assert fake.subjects["s"] == [1, 2]


def test_unknown_ids_are_asked_for_once_and_not_for_ever(served: tuple[FakeRegistry, Registry]) -> None:
    fake, registry = served
    for number in (7, 7, *range(100, 99 + UNKNOWN_MAX)):
        with pytest.raises(SchemaNotFound, match=f"has no schema with id {number}"):
            registry.schema(number)
    assert len(fake.requests) == UNKNOWN_MAX
    with pytest.raises(InvalidArgument, match="valueFraming=bare"):
        registry.schema(1000)


def test_an_id_that_is_registered_later_is_found(
    served: tuple[FakeRegistry, Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, registry = served
    monkeypatch.setattr(module, "now_s", lambda: 1000.0)
    with pytest.raises(SchemaNotFound):
        registry.schema(1)
    fake.add("s", '"int"')
    monkeypatch.setattr(module, "now_s", lambda: 1000.0 + UNKNOWN_S)
    assert registry.schema(1).text == '"int"'


def test_another_servers_404_is_no_answer_of_a_registry(served: tuple[FakeRegistry, Registry]) -> None:
    fake, registry = served
    fake.add("s", '"int"')
    fake.failures = [404, 404]
    with pytest.raises(SchemaRegistryFailed, match=r"HTTP 404.*check option schemaRegistry"):
        registry.schema(1)
    with pytest.raises(SchemaRegistryFailed, match="HTTP 404"):
        registry.latest("s")
    assert registry.schema(1).text == '"int"'


def test_a_redirect_does_not_take_the_password_along(served: tuple[FakeRegistry, Registry]) -> None:
    fake, registry = served
    with fake_registry() as (other, url):
        other.add("s", '"int"')
        fake.redirect = url
        assert registry.schema(1).text == '"int"'
        assert (other.requests, other.authorization) == (["GET /schemas/ids/1"], None)


def test_a_registry_that_fails_for_a_while(served: tuple[FakeRegistry, Registry]) -> None:
    fake, registry = served
    fake.add("s", '"int"')
    fake.failures = [500, 503, 429]
    assert registry.schema(1).text == '"int"'
    assert len(fake.requests) == ATTEMPTS
    fake.failures = [500] * ATTEMPTS
    with pytest.raises(SchemaRegistryFailed, match=r"did not answer GET /schemas/ids/2 \(HTTP 500") as caught:
        registry.schema(2)
    assert caught.value.retriable
    fake.failures = [401]
    with pytest.raises(SchemaRegistryFailed, match="HTTP 401"):
        registry.schema(3)
    assert len(fake.requests) == 2 * ATTEMPTS + 1
    fake.failures = [422]
    with pytest.raises(SchemaIncompatible, match="refuses the schema"):
        registry.register("s", "avro", '"int"')


def test_a_registry_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_registry() as (_, url):
        pass
    delays: list[float] = []
    monkeypatch.setattr(module, "sleep", delays.append)
    with pytest.raises(SchemaRegistryFailed, match="check option schemaRegistry and that the registry runs"):
        opened_registry(url).latest("s")
    assert delays == [0.25, 0.5, 1.0]


def test_answers_that_are_none(served: tuple[FakeRegistry, Registry]) -> None:
    fake, registry = served
    fake.schemas = {1: {"schema": 7}, 2: {"schema": "{}", "references": [{"name": "a"}]}, 3: []}  # type: ignore[dict-item]
    with pytest.raises(SchemaRegistryFailed, match="no schema"):
        registry.schema(1)
    with pytest.raises(InvalidArgument, match="refers to other schemas"):
        registry.schema(2)
    with pytest.raises(SchemaRegistryFailed, match="no JSON object"):
        registry.schema(3)


@pytest.mark.parametrize(
    "url", ["registry:8081", "ftp://registry", "http://", "http://me:secret@registry", "http://:secret@registry"]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(InvalidArgument, match="option schemaRegistry") as caught:
        opened_registry(url)
    assert "secret@" not in str(caught.value)
