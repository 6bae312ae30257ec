"""Settings from several places: precedence, the place of each value, and the file `bk.toml`. Pure functions.

A setting has the value of the first place that gives it one: an option, an environment variable, a file, the default.
"""

from __future__ import annotations

import codecs
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields
from typing import Any, Generic, TypeVar

from msgspec import Struct

from bookies.config import (
    BookieConfig,
    ClientConfig,
    GatewayConfig,
    MetadataConfig,
    RecoveryConfig,
    SiteConfig,
    check_value,
    parse_value,
    unit_of,
    validate,
)
from bookies.encoding.documents import parse_toml
from bookies.errors import ConfigError

T = TypeVar("T")

# table of bk.toml -> (dataclasses with its settings, what they are for)
TABLES: dict[str, tuple[tuple[type, ...], str]] = {
    "metadata": ((MetadataConfig,), "The metadata store of the cluster, for every command."),
    "bookie": ((BookieConfig,), "A bookie: `bk bookie run`."),
    "recovery": (
        (RecoveryConfig, SiteConfig),
        "Auto-recovery: `bk recovery run`, and bookies with auto_recovery = true, whose HTTP server is in [bookie].",
    ),
    "gateway": ((GatewayConfig,), "Data over HTTP: `bk gateway run`."),
    "client": ((ClientConfig,), "Clients: commands, gateways, auto-recovery, and Python programs."),
}
FILES = ("tls_certificate", "tls_key", "tls_authority")  # and names that end in _file
TABLE_OF: dict[type, str] = {kind: table for table, (kinds, _) in TABLES.items() for kind in kinds}
# Settings of a bookie that may change while it runs; see `bookie/live_settings.py`. An interval of 0 disables a part
# that is created at the start, so it neither becomes 0 nor anything else.
LIVE = frozenset(
    (
        "gc_interval_ms",
        "gc_quarantine_ms",
        "gc_share_max",
        "gc_metadata_rate",
        "gc_surplus_ms",
        "compaction",
        "minor_compaction_threshold",
        "minor_compaction_interval_ms",
        "major_compaction_threshold",
        "major_compaction_interval_ms",
        "compaction_rate_size",
        "disk_usage_threshold",
        "disk_usage_lwm_threshold",
        "disk_usage_warn_threshold",
        "disk_usage_priority_threshold",
        "disk_usage_size_max",
        "disk_check_interval_ms",
        "read_only_on_any_disk_full",
        "scrub_period_ms",
        "scrub_rate_size",
    )
)
NEEDS_RESTART_AT_ZERO = ("gc_interval_ms", "scrub_period_ms")
_HEADER = re.compile(r"""\s*\[{1,2}\s*["']?([\w-]+)["']?\s*\]""")
_KEY = re.compile(r"""\s*["']?([\w-]+)["']?\s*=""")


class Given(Struct, frozen=True):
    """A value as given, and its place. `source`: option, environment or file.

    `where`: the option, the variable, or the file and the line, such as `--port`, `BK_PORT` or `bk.toml:12`.
    """

    value: Any
    source: str
    where: str


Layer = Mapping[str, Given]  # what one place gives, by the names of settings


class Resolved(Struct, Generic[T], frozen=True):
    """Settings, and the places of those that are not the default."""

    config: T
    origins: Layer


class Problem(Struct, frozen=True):
    """Mistake in a file. `line`: from 1; 0: not known."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"


class SettingsFile(Struct, frozen=True):
    """A file `bk.toml`: the values that are right by table, and the mistakes."""

    path: str
    tables: Mapping[str, Layer]
    problems: tuple[Problem, ...]


def settings_in(table: str) -> dict[str, Field[Any]]:
    """Return the settings of a table by name."""
    return {spec.name: spec for kind in TABLES[table][0] for spec in fields(kind)}


def names_file(name: str) -> bool:
    """Report whether the value of a setting is the path of a file that its process reads."""
    return name.endswith("_file") or name in FILES


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return "BK_METADATA" if name == "uri" else f"BK_{name.upper()}"


# -- precedence --------------------------------------------------------------------------------------------------------


def from_variables(kind: type, environment: Mapping[str, str]) -> dict[str, Given]:
    """Return what environment variables give."""
    names = {spec.name: variable_of(spec.name) for spec in fields(kind)}
    return {
        name: Given(environment[variable], "environment", variable)
        for name, variable in names.items()
        if variable in environment
    }


def resolve(kind: type[T], *layers: Layer) -> Resolved[T]:
    """Return the settings: each from the first layer that has it. Text becomes the setting's type.

    Raises `ConfigError`, which names the places of wrong values.
    """
    origins: dict[str, Given] = {}
    for layer in reversed(layers):
        origins |= layer
    specs = {spec.name: spec for spec in fields(kind)}  # type: ignore[arg-type]
    origins = {name: given for name, given in origins.items() if name in specs}
    values = {name: _converted(specs[name], given) for name, given in origins.items()}
    try:
        return Resolved(validate(kind(**values)), origins)
    except ConfigError as error:
        raise located(error, origins) from None


def _converted(spec: Field[Any], given: Given) -> Any:
    is_text = isinstance(given.value, str) and not isinstance(spec.default, str)
    return parse_value(spec.default, given.value, given.where) if is_text else given.value


def located(error: ConfigError, origins: Layer) -> ConfigError:
    """Return an error about settings with the places in files that they came from."""
    words = re.findall(r"\w+", error.message.partition(" (")[0])
    places = [given.where for name, given in origins.items() if name in words and given.source == "file"]
    return ConfigError(f"{error.message}. In {', '.join(places)}") if places else error


def rows_of(config: object, origins: Layer) -> list[dict[str, object]]:
    """Return every setting with value, default, unit, source and place. `changeable`: while a bookie runs."""
    rows: list[dict[str, object]] = []
    for spec in fields(config):  # type: ignore[arg-type]
        given = origins.get(spec.name)
        rows.append(
            {
                "name": spec.name,
                "value": getattr(config, spec.name),
                "default": spec.default,
                "unit": unit_of(spec.name),
                "source": "default" if given is None else given.source,
                "where": "" if given is None else given.where,
                "changeable": isinstance(config, BookieConfig) and spec.name in LIVE,
                "help": spec.metadata["help"],
            }
        )
    return rows


# -- the file ----------------------------------------------------------------------------------------------------------


def parse_settings(data: bytes, path: str) -> SettingsFile:
    """Return the tables of a file. Unknown names, wrong types and ranges are its problems.

    Raises `ConfigError` for a file that is not TOML.
    """
    if data.startswith(codecs.BOM_UTF8):
        raise ConfigError(f"{path} begins with a byte order mark: save it as UTF-8 without one (BOM)")
    try:
        document = parse_toml(data)
    except ValueError as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error
    lines = _lines(data.decode("utf-8"))
    tables: dict[str, dict[str, Given]] = {}
    problems: list[Problem] = []
    for table, content in document.items():
        if table not in TABLES or not isinstance(content, dict):
            line = lines.get((table, ""), lines.get(("", table), 0))
            problems.append(Problem(path, line, _unknown_table(table, content)))
            continue
        tables[table] = {}
        for name, value in content.items():
            line = lines.get((table, name), lines.get((table, ""), 0))
            if problem := _problem(table, name, value):
                problems.append(Problem(path, line, problem))
            else:
                spec = settings_in(table)[name]
                where = f"{path}:{line}" if line else path
                tables[table][name] = Given(_of_toml(spec, value), "file", where)
    return SettingsFile(path, tables, tuple(problems))


def _lines(text: str) -> dict[tuple[str, str], int]:
    """Return the lines of tables and their settings, by table and name; those of tables have the name ""."""
    lines: dict[tuple[str, str], int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = header[1]
            lines.setdefault((table, ""), number)
        elif key := _KEY.match(line):
            lines.setdefault((table, key[1]), number)
    return lines


def _unknown_table(name: str, content: object) -> str:
    if name in TABLES:
        return f"{name} must be a table: [{name}]"
    if isinstance(content, dict):
        return f"[{name}] is no table of settings{_nearest(name, TABLES)}; there are {', '.join(TABLES)}"
    owners = [table for table in TABLES if name in settings_in(table)]
    hint = f": it belongs into [{'] or ['.join(owners)}]" if owners else f"; there are {', '.join(TABLES)}"
    return f"{name} stands in no table{hint}"


def _problem(table: str, name: str, value: object) -> str:
    """Return what is wrong with one setting; empty: it is right."""
    specs = settings_in(table)
    if name not in specs:
        owners = [other for other in TABLES if name in settings_in(other)]
        hint = f"; it belongs into [{'] or ['.join(owners)}]" if owners else _nearest(name, specs)
        return f"[{table}] has no setting {name}{hint}"
    try:
        check_value(specs[name], _of_toml(specs[name], value))
    except ConfigError as error:
        return error.message
    return ""


def _of_toml(spec: Field[Any], value: Any) -> Any:
    """Return a value of TOML as one of the setting: a list as tuple, a duration or size with its unit as number."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return tuple(value)
    if isinstance(value, str) and type(spec.default) is int and unit_of(spec.name) in ("ms", "s", "bytes"):
        return parse_value(spec.default, value, spec.name)
    return value


def _nearest(name: str, names: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {near[0]}?" if near else ""


def check_agreement(file: SettingsFile) -> Iterator[Problem]:
    """Yield the contradictions between the settings of each table of a file."""
    for table, (kinds, _) in TABLES.items():
        layer = file.tables.get(table, {})
        for kind in kinds:
            specs = {spec.name for spec in fields(kind)}
            try:
                validate(kind(**{name: given.value for name, given in layer.items() if name in specs}))
            except ConfigError as error:
                yield problem_of(error, file.path, layer)


def problem_of(error: ConfigError, path: str, layer: Layer) -> Problem:
    """Return an error about settings as a problem at the line of the first one that it names."""
    words = re.findall(r"\w+", error.message.partition(" (")[0])
    places = [layer[word].where for word in words if word in layer]
    line = places[0].rpartition(":")[2] if places else ""
    return Problem(path, int(line) if line.isdigit() else 0, error.message)


def template() -> str:
    """Return a file with every setting as a comment, with its unit, range, default and help."""
    lines = [
        "# Settings of bookies, auto-recovery, gateways and clients. Remove the # before a name to set it.",
        "# Options of the command line and BK_... variables override this file. Durations and sizes accept units:",
        '# "10m", "64m". `bk config check FILE` finds mistakes, `bk config show` prints what is in effect.',
    ]
    for table, (_, purpose) in TABLES.items():
        lines += ["", f"# {purpose}", f"[{table}]"]
        for spec in settings_in(table).values():
            lines += ["", *_described(table, spec), f"# {spec.name} = {toml_text(spec.default)}"]
    return "\n".join(lines) + "\n"


def _described(table: str, spec: Field[Any]) -> Iterator[str]:
    """Yield the help of a setting as comments. `##` separates them from what can be uncommented."""
    yield f"## {spec.metadata['help']}"
    low, high, unit = spec.metadata["low"], spec.metadata["high"], unit_of(spec.name)
    facts = [f"unit: {unit}"] if unit else []
    if low is not None or high is not None:
        facts.append(f"{low if low is not None else ''} to {high if high is not None else 'any'}".strip())
    if table == "bookie" and spec.name in LIVE:
        facts.append("may change while the bookie runs: `bk bookie settings --set`")
    if facts:
        yield f"## ({'; '.join(facts)})"


def toml_text(value: object) -> str:
    """Return a setting's value as TOML."""
    if isinstance(value, tuple):
        return f"[{', '.join(toml_text(part) for part in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
