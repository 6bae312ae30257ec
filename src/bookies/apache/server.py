"""Bookie settings from Apache's `bk_server.conf`. `server_keys` lists the keys; the rules for several keys are here.

Only keys in the file count: Apache's defaults for the others are not assumed. The exception is the bookie's identity,
which must be the one that Apache's bookie would have. Source: metadata 6.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from bookies.apache.security import bookie_authentication, bookie_tls
from bookies.apache.server_keys import SERVER
from bookies.apache.table import (
    Notice,
    layer_of,
    mebibytes,
    metadata_uri,
    names,
    number,
    percent,
    positive,
    secure_metadata,
    switch,
    translate,
    value_of,
)
from bookies.config import MIB, BookieConfig, RecoveryConfig
from bookies.errors import ConfigError
from bookies.settings import Layer

PAGE_SIZE = 8192  # Apache's default
HTTP_PORT = 8080  # Apache's default
READ_WORKERS_MAX, OPEN_FILES_MIN, INDEX_CACHE_SIZE_MIN = 64, 8, MIB  # limits of our settings


class Host(Protocol):
    """Facts about the machine's network."""

    def address_of(self, interface: str | None) -> str:
        """Return an IP address of a network interface; None: the address of the machine's own name. Raises OSError."""

    def name_of(self, address: str) -> str:
        """Return the full name of an address; the address itself if it has none."""


class BookieOptions(Struct, frozen=True):
    """Converted settings. `settings`, `recovery_settings`: fields and values of `BookieConfig` and `RecoveryConfig`.

    `metadata_uri` None: the file names no store.
    """

    settings: dict[str, Any]
    metadata_uri: str | None
    notices: list[Notice]
    recovery_settings: dict[str, Any]
    properties: Mapping[str, str]

    def layer(self, path: str) -> Layer:
        """Return the settings of bookie and recovery with the keys that they came from. `path`: of the file."""
        return layer_of(SERVER, self.properties, self.settings | self.recovery_settings, path)


def bookie_options(properties: Mapping[str, str], host: Host) -> BookieOptions:
    """Convert the properties.

    Raises `ConfigError` for values that cannot be read, and for keys that must not be ignored.
    """
    settings, notices = translate(SERVER, properties)
    uri = metadata_uri(properties)
    secure_metadata(properties, uri)
    _identity(properties, settings, host)
    _storage(properties, settings)
    _disks(settings)
    _compaction(properties, settings)
    _http(properties, settings)
    bookie_tls(properties, settings, notices)
    bookie_authentication(properties, settings, notices)
    ours = RecoveryConfig.__dataclass_fields__
    recovery = {name: settings.pop(name) for name in list(settings) if name in ours}
    return BookieOptions(settings, uri, notices, recovery, properties)


def _is_on(properties: Mapping[str, str], key: str) -> bool:
    return bool(value_of(properties, key, switch))


def _identity(properties: Mapping[str, str], settings: dict[str, Any], host: Host) -> None:
    """Set the listening address and the published one, which is the bookie's id unless bookieId is set. Source:
    metadata 6.4.
    """
    if settings.get("port") == 0 and not _is_on(properties, "allowEphemeralPorts"):
        raise ConfigError("bookiePort=0 means any free port: set allowEphemeralPorts=true and a bookieId")
    interface = properties.get("listeningInterface", "").strip() or None
    advertised = properties.get("advertisedAddress", "").strip()
    if advertised:
        everywhere = "::" if ":" in advertised else "0.0.0.0"
        settings["host"] = everywhere if interface is None else _address(host, interface)
        settings["advertised_host"] = advertised
        return
    address = _address(host, interface)
    if (address.startswith("127.") or address == "::1") and not _is_on(properties, "allowLoopback"):
        subject = f"the interface {interface}" if interface else "this machine's name"
        raise ConfigError(
            f"{subject} has the address {address}, which no other machine can reach: name another one with "
            "listeningInterface or advertisedAddress, or set allowLoopback=true"
        )
    settings["host"] = "0.0.0.0" if interface is None else address
    settings["advertised_host"] = address
    if _is_on(properties, "useHostNameAsBookieID"):
        name = host.name_of(address)
        if name == address:
            raise ConfigError(
                f"useHostNameAsBookieID=true: the address {address} has no name; name it in DNS, or set bookieId"
            )
        settings["advertised_host"] = name.partition(".")[0] if _is_on(properties, "useShortHostName") else name


def _address(host: Host, interface: str | None) -> str:
    try:
        return host.address_of(interface)
    except OSError as error:
        subject = f"listeningInterface={interface}" if interface else "this machine's own name"
        raise ConfigError(f"{subject} has no address ({error}): set advertisedAddress") from error


def _storage(properties: Mapping[str, str], settings: dict[str, Any]) -> None:
    """Convert settings that depend on several keys."""
    if "journal_directories" not in settings and properties.get("journalDirectory"):
        settings["journal_directories"] = names(properties["journalDirectory"])
    pages = value_of(properties, "pageLimit", number)
    if pages is not None and pages > 0:
        cache_size = pages * (value_of(properties, "pageSize", number) or PAGE_SIZE)
        settings["index_cache_size"] = max(INDEX_CACHE_SIZE_MIN, cache_size)
    files = value_of(properties, "openFileLimit", number)
    if files is not None and files > 0:
        settings["open_files_max"] = max(OPEN_FILES_MIN, files)
    size = value_of(properties, "skipListSizeLimit", number)
    if size is not None:
        settings["write_cache_size"] = 2 * size
    size = value_of(properties, "dbStorage_writeCacheMaxSizeMb", mebibytes)
    if size is not None and properties.get("ledgerStorageClass", "").endswith("DbLedgerStorage"):
        settings["write_cache_size"] = size
    threads = value_of(properties, "numReadWorkerThreads", positive)
    if threads is not None:
        settings["read_workers"] = min(READ_WORKERS_MAX, threads)


def _disks(settings: dict[str, Any]) -> None:
    """Lower our marks that the file does not name to a lower threshold."""
    full = settings.get("disk_usage_threshold")
    for name in ("disk_usage_lwm_threshold", "disk_usage_warn_threshold"):
        if full is not None and name not in settings and getattr(BookieConfig, name) > full:
            settings[name] = full


def _http(properties: Mapping[str, str], settings: dict[str, Any]) -> None:
    """Enable the HTTP server where Apache's is enabled."""
    if _is_on(properties, "httpServerEnabled"):
        port = value_of(properties, "httpServerPort", number)
        settings["http_port"] = HTTP_PORT if port is None else port


def _compaction(properties: Mapping[str, str], settings: dict[str, Any]) -> None:
    """Convert the thresholds of compaction. A threshold of 0 turns it off in Apache; here an interval of 0 does."""
    for level in ("minor", "major"):
        threshold = value_of(properties, f"{level}CompactionThreshold", percent)
        if threshold:
            settings[f"{level}_compaction_threshold"] = threshold
        elif threshold is not None:
            settings[f"{level}_compaction_interval_ms"] = 0
    rate = value_of(properties, "compactionRateByBytes", number)
    if rate is not None and _is_on(properties, "isThrottleByBytes"):
        settings["compaction_rate_size"] = rate
