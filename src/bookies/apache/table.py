"""What becomes of a key of Apache's: the three kinds of rows, the conversions, and what is said to whoever reads.

- `Mapped`: a setting of ours, converted; or one of several that a rule looks at together.
- `Different`: we do it in another way, or not. Said when the value is not one of those that ask for nothing else.
- `Unused`: it sizes or tunes something that does not exist here. Named once, all in one line.

Source: experience 4.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bookies.apache.properties import items_of
from bookies.config import MIB, SWITCHES
from bookies.errors import ConfigError

T = TypeVar("T")


class Level(enum.Enum):
    """How a notice is to be taken. `DANGER`: less safe than the file's author meant, or safer, which costs speed."""

    DANGER = "danger"
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True)
class Notice:
    """`key`: as in the file; of UNUSED all of them, separated by spaces. `text`: with the way out."""

    level: Level
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}"


@dataclass(frozen=True, slots=True)
class Mapped:
    """`setting`: of ours. `convert`: from the file's text; None: a rule looks at several keys together. `note`: unit
    or rule, for the documentation.
    """

    key: str
    setting: str
    convert: Callable[[str], Any] | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Different:
    """`harmless`: values, in lower case, that ask for nothing that we do not do. `text`: what is done, the way out.

    `is_refused`: a bookie that ignored it would be less protected or hold wrong data, so it does not start.
    """

    key: str
    harmless: tuple[str, ...]
    text: str
    level: Level = Level.DIFFERENT
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class Unused:
    """`keys`, separated by spaces. `reason`: why they have no meaning here."""

    reason: str
    keys: str


Row = Mapped | Different | Unused


# -- conversions ------------------------------------------------------------------------------------------------------


def text(value: str) -> str:
    return value


def names(value: str) -> tuple[str, ...]:
    return items_of(value)


def switch(value: str) -> bool:
    if value.lower() not in SWITCHES:
        raise ValueError("true or false")
    return SWITCHES[value.lower()]


def number(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError("must be one whole number") from None


def positive(value: str) -> int:
    """Zero and less mean one."""
    return max(1, number(value))


def natural(value: str) -> int:
    """Less than zero means zero."""
    return max(0, number(value))


def seconds(value: str) -> int:
    """To ms; less than zero means never, which is 0."""
    return max(0, _whole(float(value) * 1000))


def milliseconds(value: str) -> int:
    """Less than zero means never, which is 0."""
    return max(0, number(value))


def limit(value: str) -> int:
    """Less than zero means that there is none, which is 0."""
    return max(0, number(value))


def mebibytes(value: str) -> int:
    return number(value) * MIB


def percent(value: str) -> int:
    """From a fraction; what is less than zero is 0."""
    return max(0, _whole(float(value) * 100))


def _whole(value: float) -> int:
    try:
        return round(value)
    except OverflowError:
        raise ValueError("too large") from None


def disk_percent(value: str) -> int:
    """From a fraction; of what is less than one, 99 at most."""
    return min(99, percent(value)) if float(value) < 1 else percent(value)


# -- looking up -------------------------------------------------------------------------------------------------------


def index(rows: Iterable[Row]) -> dict[str, Row]:
    """Rows by key."""
    found: dict[str, Row] = {}
    for row in rows:
        for key in row.keys.split() if isinstance(row, Unused) else [row.key]:
            assert key not in found, key
            found[key] = row
    return found


def translate(rows: Sequence[Row], properties: Mapping[str, str]) -> tuple[dict[str, Any], list[Notice]]:
    """Settings of the keys that are converted one by one, and what is to be said about the others.

    Raises `ConfigError` for values that cannot be read, and for keys that must not be ignored.
    """
    known = index(rows)
    settings: dict[str, Any] = {}
    notices: list[Notice] = []
    unused: list[str] = []
    for key, value in properties.items():
        row = known.get(key)
        if row is None:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            notices.append(
                Notice(Level.UNKNOWN, key, f"no key of Apache's that is known here, so it does nothing{hint}")
            )
        elif isinstance(row, Unused):
            unused.append(key)
        elif isinstance(row, Different):
            if not _is_harmless(value.lower(), row):
                if row.is_refused:
                    raise ConfigError(f"{key}={value}: {row.text}")
                notices.append(Notice(row.level, f"{key}={_shown(key, value)}", row.text))
        elif row.convert is not None and value:
            settings[row.setting] = value_of(properties, key, row.convert)
    if unused:
        what = "these tune what does not exist here, and do nothing; docs/reference/apache-config.md says why"
        notices.append(Notice(Level.UNUSED, " ".join(unused), what))
    return settings, notices


def explained(rows: Sequence[Row], properties: Mapping[str, str], error: ConfigError, where: str) -> ConfigError:
    """An error about settings of ours, with the keys that they came from. `where`: they stand."""
    words = error.message.replace(":", " ").split()
    mapped = [row for row in rows if isinstance(row, Mapped) and properties.get(row.key)]
    keys = [f"{row.key}={_shown(row.key, properties[row.key])}" for row in mapped if row.setting in words]
    return ConfigError(f"{error.message}. In {where}: {', '.join(keys)}") if keys else error


def _shown(key: str, value: str) -> str:
    """A value for people; passwords are for nobody."""
    return "***" if key == "passwd" or key.endswith("Password") else value


def _is_harmless(value: str, row: Different) -> bool:
    """Java knows several words for true and for false."""
    return value in row.harmless or (value in SWITCHES and str(SWITCHES[value]).lower() in row.harmless)


def value_of(properties: Mapping[str, str], key: str, convert: Callable[[str], T]) -> T | None:
    """A key's value, None where the file has none. Raises `ConfigError` that names the key."""
    value = properties.get(key, "")
    if not value:
        return None
    try:
        return convert(value)
    except ValueError as error:
        raise ConfigError(f"{key}={value}: {error}") from error


# -- the metadata service ---------------------------------------------------------------------------------------------

_MANAGERS = {
    "FlatLedgerManagerFactory": "flat",
    "HierarchicalLedgerManagerFactory": "hierarchical",
    "LongHierarchicalLedgerManagerFactory": "longhierarchical",
    "LegacyHierarchicalLedgerManagerFactory": "null",
}


def metadata_uri(properties: Mapping[str, str]) -> str | None:
    """The store that a file names, in the new way or in the old one. Raises `ConfigError`. Source: metadata 1."""
    uri = properties.get("metadataServiceUri", "").strip()
    if uri:
        return uri
    servers = items_of(properties.get("zkServers", "").replace(";", ","))
    if not servers:
        return None
    root = properties.get("zkLedgersRootPath", "").strip() or "/ledgers"
    return f"zk+{_manager(properties)}://{';'.join(servers)}{root}"


def _manager(properties: Mapping[str, str]) -> str:
    class_name = properties.get("ledgerManagerFactoryClass", "").rpartition(".")[2]
    if class_name:
        if class_name not in _MANAGERS:
            raise ConfigError(f"ledgerManagerFactoryClass: {class_name} is not known; known are {', '.join(_MANAGERS)}")
        return _MANAGERS[class_name]
    kind = properties.get("ledgerManagerType", "").strip()
    if kind and kind not in ("flat", "hierarchical", "longhierarchical"):
        raise ConfigError(f"ledgerManagerType={kind}: flat, hierarchical or longhierarchical")
    return kind or "null"


def secure_metadata(properties: Mapping[str, str], uri: str | None) -> None:
    """Raises `ConfigError` when znodes are to be protected and nothing says by whom."""
    if value_of(properties, "zkEnableSecurity", switch) and "?options=" not in (uri or ""):
        raise ConfigError(
            "zkEnableSecurity=true: Apache takes the identity from JAAS, here a file has it: write "
            "metadataServiceUri=...?options=/etc/bookies/zookeeper.toml with secure = true (docs/explanation/metadata.md)"
        )
