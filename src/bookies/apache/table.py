"""Tables of Apache's keys: the three row types, the conversions, and the notices.

- `Mapped`: one of our settings, converted; or one of several keys that a rule combines.
- `Different`: done differently here, or not at all. Reported unless the value is harmless.
- `Unused`: sizes or tunes something that does not exist here. All such keys are reported in one line.

No key is silently ignored.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from bookies.apache.properties import items_of
from bookies.config import MIB, ROCKSDB, SWITCHES
from bookies.errors import ConfigError
from bookies.settings import Given, Layer

T = TypeVar("T")


class Level(enum.Enum):
    """Severity of a notice. `DANGER`: less safe than the file's author intended, or safer, which costs speed."""

    DANGER = "danger"
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    UNUSED = "unused"


class Notice(Struct, frozen=True):
    """Difference from the file. `text`: with the remedy.

    `key`: as in the file; for UNUSED all keys, separated by spaces.
    """

    level: Level
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}"


class Mapped(Struct, frozen=True):
    """Key that becomes one of our settings. `convert`: from the file's text; None: a rule combines several keys.

    `note`: unit or rule, for the documentation.
    """

    key: str
    setting: str
    convert: Callable[[str], Any] | None = None
    note: str = ""


class Different(Struct, frozen=True):
    """Key that is handled differently here. `text`: what happens instead, with the remedy.

    `harmless`: values, in lower case, that need no notice. `is_refused`: a bookie that ignored it would be less
    protected or hold wrong data, so it does not start.
    """

    key: str
    harmless: tuple[str, ...]
    text: str
    level: Level = Level.DIFFERENT
    is_refused: bool = False


class Unused(Struct, frozen=True):
    """Keys without a meaning here, separated by spaces. `reason`: why."""

    reason: str
    keys: str


Row = Mapped | Different | Unused


def metadata_rows(setting: str) -> tuple[Row, ...]:
    """Return the keys of the metadata service. `setting`: what they become."""
    return (
        Mapped("metadataServiceUri", setting, note="unchanged"),
        Mapped("zkServers", setting, note="if metadataServiceUri is absent: zk+null://SERVERS/ROOT"),
        Mapped("zkLedgersRootPath", setting, note="the path in the URI; default /ledgers"),
        Mapped("ledgerManagerFactoryClass", setting, note="the class name determines the scheme, such as zk+flat"),
        Mapped("ledgerManagerType", setting, note="older form of ledgerManagerFactoryClass"),
        Mapped("zkEnableSecurity", setting, note="true: the URI must name a file with the identity, ?options=FILE"),
    )


TLS_ROWS = (
    Mapped("tlsEnabledProtocols", "tls_version_min", note="the oldest of them; versions before TLSv1.2 are reported"),
    Mapped("tlsEnabledCipherSuites", "tls_ciphers", note="reported: OpenSSL uses other names"),
    Mapped("tlsCertFilesRefreshDurationSeconds", "tls_reload_interval_ms", note="seconds; 0: our default"),
)


# -- conversions ------------------------------------------------------------------------------------------------------


def text(value: str) -> str:
    return value


def names(value: str) -> tuple[str, ...]:
    return items_of(value)


def kind_of_index(value: str) -> str:
    """Convert the class of Apache's storage."""
    return ROCKSDB if value.endswith("DbLedgerStorage") else "files"


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
    """Convert a whole number; 0 and less become 1."""
    return max(1, number(value))


def natural(value: str) -> int:
    """Convert a whole number; less than 0 becomes 0."""
    return max(0, number(value))


def seconds(value: str) -> int:
    """Convert seconds to ms; less than 0 means never, which is 0."""
    return max(0, _whole(float(value) * 1000))


def milliseconds(value: str) -> int:
    """Convert ms; less than 0 means never, which is 0."""
    return max(0, number(value))


def limit(value: str) -> int:
    """Convert a limit; less than 0 means no limit, which is 0."""
    return max(0, number(value))


def mebibytes(value: str) -> int:
    return number(value) * MIB


def percent(value: str) -> int:
    """Convert a fraction to percent; less than 0 becomes 0."""
    return max(0, _whole(float(value) * 100))


def _whole(value: float) -> int:
    try:
        return round(value)
    except OverflowError:
        raise ValueError("too large") from None


def disk_percent(value: str) -> int:
    """Convert a fraction to percent; fractions below 1 become at most 99."""
    return min(99, percent(value)) if float(value) < 1 else percent(value)


# -- lookup -----------------------------------------------------------------------------------------------------------


def index(rows: Iterable[Row]) -> dict[str, Row]:
    """Return the rows by key."""
    row_of: dict[str, Row] = {}
    for row in rows:
        for key in row.keys.split() if isinstance(row, Unused) else [row.key]:
            assert key not in row_of, key
            row_of[key] = row
    return row_of


def translate(rows: Sequence[Row], properties: Mapping[str, str]) -> tuple[dict[str, Any], list[Notice]]:
    """Return the settings of keys that are converted one by one, and the notices about the others.

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
            notices.append(Notice(Level.UNKNOWN, key, f"is not a known key of Apache's, so it has no effect{hint}"))
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
        explanation = (
            "these tune what does not exist here, and have no effect; docs/reference/apache-config.md has the reasons"
        )
        notices.append(Notice(Level.UNUSED, " ".join(unused), explanation))
    return settings, notices


def layer_of(rows: Sequence[Row], properties: Mapping[str, str], settings: Mapping[str, Any], place: str) -> Layer:
    """Return settings from a file with the keys that each one came from. `place`: the file."""
    keys: dict[str, list[str]] = {}
    for row in rows:
        if isinstance(row, Mapped) and properties.get(row.key):
            keys.setdefault(row.setting, []).append(f"{row.key}={_shown(row.key, properties[row.key])}")
    return {
        name: Given(value, "file", f"{place}: {', '.join(keys[name])}" if name in keys else place)
        for name, value in settings.items()
    }


def _shown(key: str, value: str) -> str:
    """Return a value for display; passwords are hidden."""
    return "***" if key == "passwd" or key.endswith("Password") else value


def _is_harmless(value: str, row: Different) -> bool:
    """Report whether the value needs no notice. Java accepts several words for true and false."""
    return value in row.harmless or (value in SWITCHES and str(SWITCHES[value]).lower() in row.harmless)


def value_of(properties: Mapping[str, str], key: str, convert: Callable[[str], T]) -> T | None:
    """Return a key's value, None if the file does not have it. Raises `ConfigError` that names the key."""
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
    """Return the store that a file names, in the new or the old form. Raises `ConfigError`. Source: metadata 1."""
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
            raise ConfigError(
                f"ledgerManagerFactoryClass: {class_name} is unknown; expected one of {', '.join(_MANAGERS)}"
            )
        return _MANAGERS[class_name]
    manager = properties.get("ledgerManagerType", "").strip()
    if manager and manager not in ("flat", "hierarchical", "longhierarchical"):
        raise ConfigError(f"ledgerManagerType={manager}: must be flat, hierarchical or longhierarchical")
    return manager or "null"


def secure_metadata(properties: Mapping[str, str], uri: str | None) -> None:
    """Check that protected znodes come with an identity. Raises `ConfigError`."""
    if value_of(properties, "zkEnableSecurity", switch) and "?options=" not in (uri or ""):
        raise ConfigError(
            "zkEnableSecurity=true: Apache reads the identity from JAAS, here a file has it: write "
            "metadataServiceUri=...?options=/etc/bookies/zookeeper.toml with secure = true "
            "(docs/explanation/metadata.md)"
        )
