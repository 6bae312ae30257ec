"""Settings: precedence, places of values, the file bk.toml with its mistakes, and the template."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields

import pytest

from bookies.config import (
    BookieConfig,
    ClientConfig,
    GatewayConfig,
    MetadataConfig,
    SiteConfig,
    parse_value,
    unit_of,
    validate,
)
from bookies.errors import ConfigError
from bookies.settings import (
    TABLES,
    Given,
    check_agreement,
    from_variables,
    parse_settings,
    resolve,
    rows_of,
    settings_in,
    template,
    toml_text,
)

FILE = b"""
[metadata]
uri = "zk://zk1:2181/ledgers"

[bookie]
port = 4000 # a comment
gc_interval_ms = "10m"
journal_directories = [
  "/nvme/journal",
]
write_cache_size = "64m"

[client]
add_timeout_ms = "2s"
hedged_reads = false
"""


def problems_of(text: str) -> list[str]:
    file = parse_settings(text.encode(), "bk.toml")
    return [str(problem) for problem in (*file.problems, *check_agreement(file))]


def test_values_of_a_file_have_their_lines_and_units() -> None:
    file = parse_settings(FILE, "bk.toml")
    assert file.problems == ()
    bookie = file.tables["bookie"]
    assert bookie["port"] == Given(4000, "file", "bk.toml:6")
    assert bookie["gc_interval_ms"] == Given(600_000, "file", "bk.toml:7")
    assert bookie["journal_directories"] == Given(("/nvme/journal",), "file", "bk.toml:8")
    assert bookie["write_cache_size"].value == 64 << 20
    assert file.tables["client"]["hedged_reads"] == Given(False, "file", "bk.toml:15")
    assert list(check_agreement(file)) == []


def test_an_option_precedes_a_variable_which_precedes_the_file() -> None:
    file = {name: Given(number, "file", "f:1") for number, name in enumerate(("port", "open_files_max"), 4000)}
    file["read_workers"] = Given(5, "file", "f:3")
    variables = from_variables(BookieConfig, {"BK_PORT": "5000", "BK_OPEN_FILES_MAX": "500", "BK_OTHER": "x"})
    resolved = resolve(BookieConfig, {"port": Given("6000", "option", "--port")}, variables, file)
    assert (resolved.config.port, resolved.config.open_files_max, resolved.config.read_workers) == (6000, 500, 5)
    rows = {str(row["name"]): row for row in rows_of(resolved.config, resolved.origins)}
    places = {name: (row["source"], row["where"]) for name, row in rows.items()}
    assert places["port"] == ("option", "--port")
    assert places["open_files_max"] == ("environment", "BK_OPEN_FILES_MAX")
    assert places["read_workers"] == ("file", "f:3")
    assert places["host"] == ("default", "")
    assert (rows["gc_interval_ms"]["changeable"], rows["port"]["changeable"]) == (True, False)
    assert (rows["gc_interval_ms"]["unit"], rows["port"]["unit"]) == ("ms", "")


def test_the_metadata_store_has_its_variable() -> None:
    assert resolve(MetadataConfig, from_variables(MetadataConfig, {"BK_METADATA": "memory:"})).config.uri == "memory:"


def test_errors_name_the_lines_of_the_settings() -> None:
    layer = {"zones_min": Given(5, "file", "bk.toml:7"), "placement": Given("zone", "file", "bk.toml:3")}
    with pytest.raises(ConfigError, match=r"zones_min = 5 is more than zones_desired = 3\. In bk\.toml:7$"):
        resolve(ClientConfig, layer)
    with pytest.raises(ConfigError, match=r"BK_PORT='much': no whole number$"):
        resolve(BookieConfig, from_variables(BookieConfig, {"BK_PORT": "much"}))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[bookie]\nprot = 1", "bk.toml:2: [bookie] has no setting prot; did you mean port?"),
        ("[bookie]\nadd_timeout_ms = 1", "bk.toml:2: [bookie] has no setting add_timeout_ms; it belongs into [client]"),
        ("[boookie]\nport = 1", "bk.toml:1: [boookie] is no table of settings; did you mean bookie?"),
        ("port = 1", "bk.toml:1: port stands in no table: it belongs into [bookie]"),
        ("nonsense = 1", "bk.toml:1: nonsense stands in no table; there are metadata, bookie"),
        ('[bookie]\nport = "one"', "bk.toml:2: port = 'one': no whole number (TCP port"),
        ("[bookie]\ncontrol = 1", "bk.toml:2: control = 1: must be true or false"),
        (
            '[bookie]\njournal_directories = "/j"',
            "bk.toml:2: journal_directories = '/j': must be a list of texts; write [\"/j\"]",
        ),
        (
            "[bookie]\njournal_directories = [1]",
            'bk.toml:2: journal_directories = [1]: must be a list of texts; write ["/a"]',
        ),
        ("[bookie]\n\nport = 70000", "bk.toml:3: port = 70000: must be at most 65535"),
        ('[bookie]\nlease_ms = "soon"', "bk.toml:2: lease_ms='soon': no whole number of ms; write 600000 or 10m"),
        ('[bookie]\ngc_share_max = "40%"', "bk.toml:2: gc_share_max = '40%': no whole number of percent; write 40"),
        ("[bookie]\nhost = 3", 'bk.toml:2: host = 3: must be text; write "3"'),
        ("\n[[bookie]]\nport = 1", "bk.toml:2: bookie must be a table: [bookie]"),
        ("bookie = 3", "bk.toml:1: bookie must be a table: [bookie]"),
        ("[client]\nplacement = 'best'", "bk.toml:2: placement = 'best': must be one of auto, random"),
        ("[gateway]\nhttp_host = '0.0.0.0'", "bk.toml:2: http_host = '0.0.0.0': other machines could reach"),
        ("[bookie]\ncompaction = 'x'\n[recovery]\nhttp_tlss = true", "bk.toml:4: [recovery] has no setting http_tlss"),
    ],
)
def test_mistakes_of_a_file(text: str, problem: str) -> None:
    assert problem in " | ".join(problems_of(text))


def test_a_file_that_is_not_toml_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"bk\.toml is not a TOML file: .*line 1"):
        parse_settings(b"port == 1", "bk.toml")
    with pytest.raises(ConfigError, match=r"bk\.toml begins with a byte order mark"):
        parse_settings(b"\xef\xbb\xbf[bookie]\n", "bk.toml")


def test_a_list_from_python_is_no_tuple() -> None:
    with pytest.raises(ConfigError, match=r"must be a tuple; write \('/a',\)"):
        validate(BookieConfig(journal_directories=["/a"]))  # type: ignore[arg-type]


def test_the_template_has_every_setting_with_its_default() -> None:
    text = template()
    assert tomllib.loads(text) == {table: {} for table in TABLES}
    given = tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE))
    for table, values in given.items():
        expected = {name: spec.default for name, spec in settings_in(table).items()}
        assert {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()} == expected
        for spec in settings_in(table).values():
            assert f"## {spec.metadata['help']}" in text
    assert parse_settings(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE).encode(), "x").problems == ()


def test_tables_have_the_settings_of_their_processes() -> None:
    assert {spec.name for spec in fields(GatewayConfig)} == set(settings_in("gateway"))
    assert {spec.name for spec in fields(SiteConfig)} < set(settings_in("recovery"))
    assert toml_text(("a", 'b"\\')) == '["a", "b\\"\\\\"]'


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("gc_interval_ms", "10m", 600_000),
        ("BK_GC_INTERVAL_MS", "1500", 1500),
        ("lost_bookie_delay_s", "5min", 300),
        ("write_cache_size", "64m", 64 << 20),
        ("memory_limit", "1g", 1 << 30),
        ("disk_usage_size_max", "0", 0),
        ("port", "3181", 3181),
    ],
)
def test_numbers_with_units(name: str, text: str, value: int) -> None:
    assert parse_value(0, text, name) == value


@pytest.mark.parametrize(
    ("name", "text"), [("lost_bookie_delay_s", "500ms"), ("port", "3k"), ("gc_interval_ms", "3k"), ("gc_share_max", "")]
)
def test_units_that_do_not_fit(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}='{text}': no whole number"):
        parse_value(0, text, name)


def test_units_of_settings() -> None:
    names = ("gc_interval_ms", "audit_ledgers_interval_s", "frame_size_max", "disk_usage_threshold", "gc_share_max")
    assert [unit_of(name) for name in names] == ["ms", "s", "bytes", "percent", "percent"]
    assert unit_of("read_workers") == ""
