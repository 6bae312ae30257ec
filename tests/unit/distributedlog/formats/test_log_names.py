"""Names of logs, URIs of namespaces, numbers in znodes. Source: distributedlog 2.1, 2.3."""

from __future__ import annotations

import pytest

from bookies.distributedlog.formats.log_names import LogPaths, check_name, parse_namespace_uri, parse_number
from bookies.errors import ConfigError, InvalidArgument, MetadataCorrupt


def test_a_uri_names_servers_and_a_root() -> None:
    place = parse_namespace_uri("distributedlog-bk://zk1:2181;zk2:2181/messaging/dl/")
    assert (place.hosts, place.path) == ("zk1:2181,zk2:2181", "/messaging/dl")


@pytest.mark.parametrize(
    "uri", ["distributedlog:/x", "distributedlog://zk", "distributedlog:///x", "zk://h/x", "", "distributedlog://h//x"]
)
def test_another_uri_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="expected distributedlog://"):
        parse_namespace_uri(uri)


@pytest.mark.parametrize("name", ["orders", "a/b/c", "/orders", "x-y_z.1", "über"])
def test_names_that_are_accepted(name: str) -> None:
    assert check_name(name) == name.removeprefix("/")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "a/",
        "a//b",
        ".a",
        "<default>",
        "a/../b",
        "a b",
        "a\0",
        "a>b",
        "a\x1f".replace("\x1f", "\x1e"),
        "\U0001f600",
    ],
)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="is not the name of a log"):
        check_name(name)


def test_the_znodes_of_a_log() -> None:
    paths = LogPaths("/dl", "orders")
    assert [path for path, _ in paths.contents()][:2] == ["/dl/orders", "/dl/orders/<default>"]
    assert dict(paths.contents())[paths.version] == b"\xff\xff\xff\xff"
    assert paths.segment("logrecs_1") == "/dl/orders/<default>/ledgers/logrecs_1"
    assert paths.subscriber("billing") == "/dl/orders/<default>/subscribers/billing"


def test_numbers() -> None:
    assert parse_number(b"-999", "/x") == -999
    with pytest.raises(MetadataCorrupt, match="/x holds"):
        parse_number(b"", "/x")
    with pytest.raises(MetadataCorrupt, match="/x holds"):
        parse_number(b"9223372036854775808", "/x")
