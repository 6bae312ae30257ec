"""Settings as dataclasses. Each field carries its default, its unit in its name, and one line of help.

The command line, environment variables (`BK_<NAME>`), the file `bk.toml` (`settings.py`), documentation and errors come
from these. No key of a configuration is silently ignored.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

from bookies.errors import ConfigError
from bookies.model import FRAME_SIZE_MAX
from bookies.units import parse_number

T = TypeVar("T")
KIB, MIB = 1 << 10, 1 << 20
SWITCHES = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
TLS_VERSIONS = ("1.2", "1.3")
LOCATION = re.compile(r"(/[^/\s]+)+/?")
UNITS = {  # of a setting, by the end of its name
    "_ms": "ms",
    "_s": "s",
    "_size": "bytes",
    "_size_max": "bytes",
    "memory_limit": "bytes",
    "_threshold": "percent",
    "_percentage": "percent",
    "_share_max": "percent",
}
EXAMPLES = {"ms": "600000 or 10m", "s": "600 or 10m", "bytes": "67108864 or 64m", "percent": "40"}
PLACEMENTS = ("auto", "random", "rack", "region", "zone")
AUTHENTICATIONS = ("none", "sasl", "certificate")
ROCKSDB = "rocksdb"
LEDGER_INDEXES = ("files", ROCKSDB)
# Settings of both sides.
TLS_KEY = "PEM file with the private key of tls_certificate; empty: in the same file"
TLS_KEY_PASSWORD = "file with the password of tls_key, or of a key store in tls_certificate; empty: no password"
TLS_AUTHORITY_PASSWORD = "file with the password of tls_authority if that is a key store; empty: no password"
TLS_VERSION = "oldest TLS version accepted: 1.2 or 1.3"
TLS_CIPHERS = "ciphers of TLS 1.2 in OpenSSL's notation; empty: OpenSSL's defaults"
TLS_RELOAD = "minimum time between two checks of the certificate files for changes, made when a connection opens"


def setting(default: Any, help: str, *, low: float | None = None, high: float | None = None) -> Any:
    """Declare a field with a range and a line of help."""
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class MetadataConfig:
    """Settings of the metadata store."""

    uri: str = setting(
        "",
        "metadata store of the cluster: file:DIR, zk://HOST:2181/PATH or etcd://HOST:2379/PATH; empty: that of the "
        "nearest bk-data directory or of the context in use",
    )


@dataclass(frozen=True, kw_only=True)
class HttpConfig:
    """Settings of the HTTP server of a bookie, or of a process that runs auto-recovery alone."""

    http_port: int = setting(
        -1,
        "port of the HTTP server with probes, metrics and Apache's endpoints; 0: any free one, -1: no server",
        low=-1,
        high=65535,
    )
    http_host: str = setting(
        "127.0.0.1", "address on which the HTTP server listens; any but loopback needs users_file and http_tls"
    )
    http_insecure: bool = setting(
        False, "let the HTTP server listen on an address other than loopback without users_file or http_tls"
    )
    users_file: str = setting(
        "", "file of users, see `bk token add`; without it anyone may read over HTTP, and changes are refused"
    )
    http_tls: bool = setting(
        False, "serve HTTPS with tls_certificate; with tls_authority, users may present certificates signed by it"
    )
    http_open_metrics: bool = setting(False, "answer /metrics without a user although users_file is set")
    http_names: tuple[str, ...] = setting(
        (), "host names by which clients reach the HTTP server, beside localhost, http_host and IP addresses"
    )
    http_connections_max: int = setting(100, "connections of the HTTP server, four of them for probes", low=8)
    http_requests_rate: int = setting(
        50,
        "requests per second of all clients; the same again for probes, and a fifth for scrapes; further requests wait",
        low=1,
    )
    http_bodies_size: int = setting(
        8 * MIB, "bytes of all requests' bodies that the HTTP server holds; above it requests get 429", low=64 * KIB
    )


@dataclass(frozen=True, kw_only=True)
class SiteConfig(HttpConfig):
    """Settings of the HTTP server of a bookie or of auto-recovery: with Spark jobs, which a gateway does not start."""

    http_jobs_directory: str = setting("", "directory of the Spark jobs that users start over HTTP; empty: none start")
    http_jobs_targets: tuple[str, ...] = setting((), "directories and URIs to which these jobs may copy ledgers")
    http_jobs_cores: int = setting(1, "cores of this machine that such a job uses", low=1)


@dataclass(frozen=True, kw_only=True)
class GatewayConfig(HttpConfig):
    """Settings of a gateway, which serves data over HTTP."""

    http_port: int = setting(8081, "port of the gateway; 0: any free one", high=65535, low=0)
    http_connections_max: int = setting(1_000, "connections of the gateway, four of them for probes", low=8)
    http_requests_rate: int = setting(
        5_000,
        "requests per second of all clients; the same again for probes, and a fifth for scrapes; further requests wait",
        low=1,
    )
    http_bodies_size: int = setting(
        64 * MIB, "bytes of all requests' bodies that the gateway holds; above it requests get 429", low=8 * MIB
    )
    gateway_appends_size: int = setting(64 * MIB, "bytes of appends in progress; above it appends get 429", low=8 * MIB)
    gateway_tails_max: int = setting(100, "tails at a time; above it they get 429", low=1)
    gateway_writers_max: int = setting(
        256, "logs that the gateway leads at a time, and as many ledgers that it writes", low=1
    )
    gateway_idle_s: int = setting(
        60, "seconds without an append after which the gateway releases a log; a ledger is sealed after an hour", low=1
    )
    gateway_url: str = setting(
        "", "address by which clients reach this gateway, such as https://gw1:8081; empty: made of http_host and port"
    )


@dataclass(frozen=True, kw_only=True)
class BookieConfig(SiteConfig):
    """Settings of one bookie."""

    bookie_id: str = setting("", "fixed identity; empty: host:port")
    location: str = setting(
        "", "location of this bookie, for placement: /rack or /region/rack; empty: it publishes none"
    )
    host: str = setting("127.0.0.1", "address to listen on, and to publish unless advertised_host is set")
    port: int = setting(3181, "TCP port; 0: any free one (needs bookie_id)", low=0, high=65535)
    advertised_host: str = setting("", "address to publish, such as that of a proxy or NAT; empty: host")
    advertised_port: int = setting(0, "TCP port to publish; 0: the one listened on", low=0, high=65535)
    journal_directories: tuple[str, ...] = setting(("bk-data/journal",), "directories of the write-ahead log")
    ledger_directories: tuple[str, ...] = setting(("bk-data/ledgers",), "directories of entry logs")
    index_directories: tuple[str, ...] = setting((), "directories of index files; empty: the ledger directories")
    allow_storage_expansion: bool = setting(
        False, "accept empty directories, listed after the others, as new ledger or index directories"
    )
    new_bookies: tuple[str, ...] = setting(
        ("*",),
        "ids that may become new bookies on empty directories; *: any, and the first one creates the cluster; empty: "
        "none but by `bk bookie init`",
    )
    lost_directories: tuple[str, ...] = setting(
        (), "directories whose content is lost: start without it, and fetch it from other bookies"
    )
    allow_multiple_dirs_under_same_disk_partition: bool = setting(
        True, "false: refuse to start with two journal, or two ledger or index directories, on one file system"
    )
    persist_bookie_status: bool = setting(
        False, "keep the mode in BOOKIE_STATUS, so that `bk bookie read-only` outlasts a restart"
    )
    frame_size_max: int = setting(FRAME_SIZE_MAX, "largest frame, bytes", low=KIB, high=1 << 30)
    slow_request_ms: int = setting(
        0,
        "keep requests that take longer, with their stages, for `bk why slow`; 0: 1000 with an HTTP server, otherwise "
        "none",
        low=0,
    )
    spans: bool = setting(
        False, "make spans of OpenTelemetry for the requests that clients trace; needs an SDK and the extra otel"
    )
    journal_size_max: int = setting(512 * MIB, "roll the journal file at this size, bytes", low=MIB)
    journal_preallocate_size: int = setting(64 * MIB, "size of journal files prepared in advance, bytes", low=4096)
    journal_alignment: int = setting(512, "groups start on multiples of this, bytes", low=512)
    journal_backups_max: int = setting(1, "retired journal files to keep", low=0)
    journal_group_size_max: int = setting(4 * MIB, "largest group commit, bytes", low=64 * KIB)
    write_cache_size: int = setting(32 * MIB, "memory for entries not yet in an entry log, bytes; two halves", low=MIB)
    entry_log_size_max: int = setting(1 << 30, "roll the entry log at this size, bytes", low=MIB, high=1 << 30)
    entry_log_cached_size: int = setting(
        256 * MIB, "newest bytes of entry logs kept in the page cache; older ones are read from the device", low=0
    )
    ledger_index: str = setting(
        "files", "files: an index file for each ledger; rocksdb: the databases of Apache's DbLedgerStorage"
    )
    index_page_size: int = setting(8192, "index page of a new bookie, bytes; an existing bookie keeps its size", low=64)
    index_cache_size: int = setting(32 * MIB, "index pages in memory, bytes", low=MIB)
    open_files_max: int = setting(1000, "index files held open", low=8)
    checkpoint_interval_ms: int = setting(60_000, "longest time between checkpoints", low=100)
    checkpoint_journal_size: int = setting(512 * MIB, "journal bytes after which a checkpoint starts", low=MIB)
    adds_in_progress_size_max: int = setting(
        32 * MIB, "adds accepted but not answered, bytes; above: the bookie stops reading from sockets", low=MIB
    )
    reads_in_progress_size_max: int = setting(
        32 * MIB,
        "read answers that clients have not consumed, bytes; above: reads wait, connections take turns",
        low=MIB,
    )
    batch_read_size_max: int = setting(FRAME_SIZE_MAX, "largest batch-read answer, bytes", low=KIB)
    read_workers: int = setting(2, "threads that read entry logs", low=1, high=64)
    lease_ms: int = setting(10_000, "registration expires after this time without renewal", low=500)
    gc_interval_ms: int = setting(
        600_000, "time between two collections of deleted ledgers and entry logs; 0: never", low=0
    )
    gc_quarantine_ms: int = setting(
        86_400_000, "a deleted ledger stays readable, and restorable with `bk bookie undelete`, for this time", low=0
    )
    gc_share_max: int = setting(
        10,
        "percent of ledgers newly deleted; above (and over 100), gc waits for `bk bookie gc --force`; 100: no limit",
        low=0,
        high=100,
    )
    gc_metadata_rate: int = setting(1000, "metadata operations of a collection, per second", low=1)
    gc_surplus_ms: int = setting(
        0, "a closed ledger that no longer lists this bookie is collected after this time; 0: never", low=0
    )
    compaction: str = setting(
        "transactional", "transactional: into a separate entry log; plain: into the entry log of normal traffic"
    )
    minor_compaction_threshold: int = setting(
        20, "percent; a minor compaction compacts entry logs with less live data", low=0, high=100
    )
    minor_compaction_interval_ms: int = setting(
        3_600_000, "time between two minor compactions; 0: none automatically", low=0
    )
    major_compaction_threshold: int = setting(
        80, "percent; a major compaction compacts entry logs with less live data", low=0, high=100
    )
    major_compaction_interval_ms: int = setting(
        86_400_000, "time between two major compactions; 0: none automatically", low=0
    )
    compaction_rate_size: int = setting(
        32 * MIB, "bytes per second that scanning and compaction together read and write", low=KIB
    )
    survive_failed_directory: bool = setting(
        True,
        "give up a failed ledger or index directory and continue without it; false, or with databases: stop when a "
        "sync fails",
    )
    disk_usage_threshold: int = setting(
        95, "percent of a disk in use; above: no ordinary adds, the bookie is read-only", low=1, high=99
    )
    disk_usage_lwm_threshold: int = setting(
        93, "percent, low-water mark; a full disk becomes writable again below it", low=0, high=99
    )
    disk_usage_warn_threshold: int = setting(
        90, "percent; above: almost full, new entry logs and index files use other directories", low=0, high=99
    )
    disk_usage_priority_threshold: int = setting(
        99, "percent; above: recovery and replication adds are refused too", low=1, high=100
    )
    disk_usage_size_max: int = setting(
        40 << 30,
        "the percentages count at most this many bytes of a disk (default: 2 GiB stay usable); 0: the whole disk",
        low=0,
    )
    disk_check_interval_ms: int = setting(
        10_000, "time between two disk checks; ten times as often while a disk is almost full", low=100
    )
    read_only_on_any_disk_full: bool = setting(
        True, "one full ledger or index directory makes the bookie read-only; false: only if all are full"
    )
    scrub_period_ms: int = setting(
        604_800_000, "time in which the background scrub reads and verifies all stored data once; 0: never", low=0
    )
    scrub_rate_size: int = setting(
        16 * MIB,
        "maximum bytes per second that the scrub reads; it reads no faster than scrub_period_ms requires",
        low=4 * KIB,
    )
    auto_recovery: bool = setting(
        False, "run auto-recovery in this process (docs/howto/run-auto-recovery.md); `bk recovery run`: separately"
    )
    log_housekeeping: bool = setting(
        False, "without auto_recovery: be a candidate for applying limits of logs; `bk up` turns it on"
    )
    control: bool = setting(
        True, "listen on a local port, published in control.json, for commands such as `bk bookie gc`"
    )
    tls_certificate: str = setting("", "PEM file or key store: the bookie's certificate and its chain; empty: no TLS")
    tls_key: str = setting("", TLS_KEY)
    tls_key_password_file: str = setting("", TLS_KEY_PASSWORD)
    tls_authority: str = setting("", "PEM file or key store of the authorities that sign the certificates of clients")
    tls_authority_password_file: str = setting("", TLS_AUTHORITY_PASSWORD)
    tls_client_certificates: bool = setting(
        False, "an encrypted client must present a certificate signed by tls_authority (mutual TLS)"
    )
    tls_required: bool = setting(False, "serve encrypted connections only")
    tls_port: int = setting(
        -1, "second TCP port, with TLS from the first byte; 0: any free one, -1: none", low=-1, high=65535
    )
    tls_version_min: str = setting("1.2", TLS_VERSION)
    tls_ciphers: str = setting("", TLS_CIPHERS)
    tls_reload_interval_ms: int = setting(10_000, TLS_RELOAD, low=0)
    encryption_keys_file: str = setting("", "keys that encrypt entries, from `bk bookie new-key`; empty: no encryption")
    authentication: str = setting(
        "none", "none, sasl (users of users_file) or certificate (users of users_file, or roles in its OU)"
    )
    authorized_roles: tuple[str, ...] = setting(
        (), "roles accepted with `certificate`; the first role of a client's certificate must be listed"
    )
    sasl_allowed_ids: str = setting(
        ".*", "regular expression; users, or Kerberos principals, that it matches as a whole may connect with SASL"
    )
    kerberos_keytab: str = setting(
        "", "keytab with the bookie's principals, bookkeeper/HOST@REALM: SASL accepts their tickets too (GSSAPI)"
    )


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Settings of one client."""

    memory_limit: int = setting(
        64 * MIB, "hard limit on entries sent but not answered by every replica, bytes", low=64 * KIB
    )
    add_timeout_ms: int = setting(5_000, "a bookie that has not answered an add within this time is replaced", low=1)
    read_timeout_ms: int = setting(5_000, "a bookie that has not answered a read within this time is skipped", low=1)
    connect_timeout_ms: int = setting(10_000, "time limit of a TCP connect", low=1)
    frame_size_max: int = setting(FRAME_SIZE_MAX, "largest frame, bytes", low=KIB, high=1 << 30)
    slow_request_ms: int = setting(
        0, "keep appends and reads that take longer, with the late replica, for `Client.slow_report`; 0: none", low=0
    )
    wire: str = setting("v2", "protocol for adds and reads: v2 or v3; other requests always use v3")
    read_ahead_size: int = setting(4 * MIB, "bytes requested ahead of a sequential reader", low=64 * KIB)
    hedge_delay_min_ms: int = setting(5, "shortest delay before a read is late and sent to another bookie too", low=0)
    hedge_delay_max_ms: int = setting(250, "longest delay before a read counts as late", low=1)
    hedged_reads: bool = setting(True, "send a late read to another bookie as well; false: never")
    sticky_reads: bool = setting(
        False, "if every bookie has every entry, a reader stays with one bookie and its caches; false: all in turn"
    )
    digest_autodetection: bool = setting(
        True, "use the digest named in a ledger's metadata; false: requesting another one is an error"
    )
    explicit_lac_interval_ms: int = setting(
        200, "an idle writer announces its last entry after this time (at once where readers wait); 0: never", low=0
    )
    ensemble_changes_max: int = setting(1_000_000, "ensemble changes per ledger handle; after that appends fail", low=0)
    ensemble_changes_allowed: bool = setting(True, "replace failed bookies; false: keep sending entries to them")
    delay_ensemble_change: bool = setting(
        False, "replace failed bookies only when an entry cannot reach its ack quorum otherwise"
    )
    add_quorum_timeout_ms: int = setting(
        120_000,
        "age of an unconfirmed entry that ends its writer (AckQuorumTimeout); 0: never; skipped ids are exempt",
        low=0,
    )
    opportunistic_striping: bool = setting(
        False, "if bookies are scarce, create ledgers on fewer bookies than requested, down to the write quorum"
    )
    placement: str = setting(
        "auto",
        "spread replicas over: rack, region (and racks), zone (and upgrade domains), random (hosts); auto: rack if a "
        "location is known, else random",
    )
    placement_rule: bool = setting(
        False,
        "refuse ensembles below racks_min (zones_min), and bookies without a known location; false: a preference",
    )
    racks_min: int = setting(
        2,
        "minimum of racks (with `region` also of regions) that hold an entry's replicas; at most its write quorum",
        low=1,
    )
    regions_min: int = setting(
        0,
        "with `region`: regions that any ack quorum of an entry's replicas spans, always a rule; 0: no such rule",
        low=0,
    )
    zones_min: int = setting(2, "with `zone`: zones of each entry's replicas", low=1)
    zones_desired: int = setting(3, "with `zone`: zones of each entry's replicas where possible", low=1)
    fault_domains: str = setting("", "locations: pairs bookie=location or host=location, separated by commas")
    fault_domains_min: int = setting(
        0,
        "racks (regions, zones) that an entry must reach to be confirmed, at most its write quorum; a rule; 0: none",
        low=0,
    )
    locations_file: str = setting("", "file with the locations of bookies, in lines `bookie-or-host location`")
    locations_script: str = setting(
        "", "program that prints a location per host argument, like Apache's networkTopologyScriptFileName"
    )
    locations_script_names_max: int = setting(100, "hosts per call of locations_script", low=1)
    locations_script_timeout_ms: int = setting(10_000, "locations_script is killed after this time", low=1, high=30_000)
    locations_interval_ms: int = setting(
        10_000, "minimum time between two checks of locations_file for changes, made when bookies are chosen", low=0
    )
    disk_weights: bool = setting(
        False, "give bookies ledgers in proportion to their free disk, which is queried in the background"
    )
    disk_weight_max: int = setting(3, "cap on a bookie's weight, in multiples of the median free disk; 0: none", low=0)
    disk_weight_interval_ms: int = setting(600_000, "validity of a bookie's reported free disk", low=1000)
    location: str = setting(
        "", "location of this client; empty: of its host, by the sources above, else by what a bookie on it publishes"
    )
    near_reads: bool = setting(True, "ask near replicas first: on this host, in its rack, its region; false: in turn")
    locations_preferred: str = setting("", "locations with the next best replicas, the best first, separated by commas")
    locations_banned: str = setting("", "locations, separated by commas, that get no replicas and are read from last")
    tls: bool = setting(False, "encrypt the connections to bookies")
    tls_authority: str = setting(
        "", "PEM file or key store of the authorities that sign bookies' certificates; empty: the system's"
    )
    tls_authority_password_file: str = setting("", TLS_AUTHORITY_PASSWORD)
    tls_certificate: str = setting("", "PEM file or key store: the client's certificate and its chain; empty: none")
    tls_key: str = setting("", TLS_KEY)
    tls_key_password_file: str = setting("", TLS_KEY_PASSWORD)
    tls_check_host_name: bool = setting(
        True, "a bookie's certificate must name the host or address under which it is registered"
    )
    tls_port: int = setting(
        0,
        "port of every bookie with TLS from the first byte; 0: its ordinary port, with START_TLS",
        high=65535,
        low=0,
    )
    tls_version_min: str = setting("1.2", TLS_VERSION)
    tls_ciphers: str = setting("", TLS_CIPHERS)
    tls_reload_interval_ms: int = setting(10_000, TLS_RELOAD, low=0)
    sasl_file: str = setting("", "TOML file with username, password and mechanism, or GSSAPI; empty: no authentication")


@dataclass(frozen=True, kw_only=True)
class RecoveryConfig:
    """Settings of the auditor and the replication worker of one process."""

    lost_bookie_delay_s: int = setting(
        60, "a bookie unregistered for this time counts as lost; used until the metadata store has a value", low=0
    )
    lost_bookie_settle_ms: int = setting(
        0, "time for which a bookie must be unregistered before it counts as lost, even with a delay of 0", low=0
    )
    audit_bookies_interval_s: int = setting(
        86_400,
        "time between two checks of all ledgers for bookies lost unnoticed; 0: only when an auditor starts",
        low=0,
    )
    audit_ledgers_interval_s: int = setting(
        604_800, "time between two checks that read the first and last entry of every replica; 0: never", low=0
    )
    audit_replicas_interval_s: int = setting(
        0, "time between two checks of sealed ledgers' replicas against the bookies' own lists; 0: never", low=0
    )
    audit_placement_interval_s: int = setting(
        0, "time between two checks of sealed ledgers against this process's placement policy; 0: never", low=0
    )
    audit_verification_percentage: int = setting(
        0, "percent of the entries between the first and the last that checks and repairs read", low=0, high=100
    )
    log_retention_interval_s: int = setting(
        600, "time between two removals of what logs need not keep, see `bk log retention`; 0: never", low=0
    )
    balance_interval_s: int = setting(
        3_600, "time between two checks whether bookies hold their shares of data; else replicas move; 0: never", low=0
    )
    balance_rate_size: int = setting(
        10_000_000,
        "maximum bytes per second that move to balance data; less if requests slow down; 0: only that",
        low=0,
    )
    balance_excess_size: int = setting(
        1 << 30, "bookies that deviate from their shares of data by less count as balanced", low=0
    )
    audit_ledgers_at_once: int = setting(16, "ledgers whose replicas are checked at a time", low=1, high=10_000)
    audit_metadata_rate: int = setting(2_000, "metadata operations of checks, per second", low=1)
    recovery_ledgers_at_once: int = setting(8, "ledgers that this process repairs at a time", low=1, high=1_000)
    recovery_rate_size: int = setting(
        0, "maximum bytes copied per second; 0: adapts so that reads and writes of clients are not slowed", low=0
    )
    recovery_repairs_placement: bool = setting(
        False, "mark sealed ledgers that do not meet the placement policy, and move them until they do"
    )
    recovery_metadata_rate: int = setting(2_000, "metadata operations for choosing what to repair, per second", low=1)
    recovery_open_ledger_grace_ms: int = setting(
        30_000, "time in which the writer of an open ledger may replace a lost bookie; then the ledger is sealed", low=0
    )
    recovery_backoff_ms: int = setting(
        5_000, "pause before the second attempt at a ledger; doubles with each attempt", low=1
    )
    recovery_backoff_max_ms: int = setting(300_000, "longest pause between two attempts at a ledger", low=1)
    recovery_report_interval_ms: int = setting(
        10_000, "minimum time between a worker's reports of failed repairs to the metadata store", low=100
    )


def validate(config: T) -> T:
    """Check every field's type and range, and that they agree. Raises `ConfigError` naming field, value, range."""
    for spec in fields(config):  # type: ignore[arg-type]
        check_value(spec, getattr(config, spec.name))
    if isinstance(config, HttpConfig):
        _validate_http(config)
    if isinstance(config, BookieConfig):
        _validate_directories(config)
        _validate_compaction(config)
        _validate_disks(config)
        _validate_authentication(config)
    if isinstance(config, BookieConfig | ClientConfig):
        _validate_tls(config)
        if config.location and not LOCATION.fullmatch(config.location):
            raise ConfigError(
                f"location = {config.location!r}: must be a path as /rack or /region/rack, without spaces"
            )
    if isinstance(config, ClientConfig):
        _validate_placement(config)
        low, high = config.hedge_delay_min_ms, config.hedge_delay_max_ms
        if low > high:
            text = f"hedge_delay_min_ms = {low} is more than hedge_delay_max_ms = {high}"
            raise ConfigError(f"{text}: lower the one or raise the other")
    return config


def check_value(spec: Field[Any], value: Any) -> None:
    """Check the type and the range of a field's value. Raises `ConfigError` naming field, value, range."""
    low, high = spec.metadata["low"], spec.metadata["high"]
    if type(value) is not type(spec.default):
        wanted = _wanted(spec.default, value, unit_of(spec.name))
        raise ConfigError(f"{spec.name} = {value!r}: {wanted} ({spec.metadata['help']})")
    if isinstance(value, int) and not isinstance(value, bool):
        if low is not None and value < low:
            raise ConfigError(f"{spec.name} = {value}: must be at least {low} ({spec.metadata['help']})")
        if high is not None and value > high:
            raise ConfigError(f"{spec.name} = {value}: must be at most {high} ({spec.metadata['help']})")


def _validate_http(config: HttpConfig) -> None:
    """Raise `ConfigError` if other machines could reach an HTTP server without users, or overhear their tokens."""
    host = config.http_host
    is_local = host in ("localhost", "::1") or host.startswith("127.")
    if config.http_port < 0 or is_local or config.http_insecure or (config.users_file and config.http_tls):
        return
    problem = "tokens would cross the network in plain text; set http_tls = true"
    if not config.users_file:
        problem = "other machines could reach the HTTP server, which has no users; set users_file (`bk token add`)"
    raise ConfigError(f"http_host = {host!r}: {problem}, use 127.0.0.1, or allow it with http_insecure = true")


def _validate_directories(config: BookieConfig) -> None:
    """Raise `ConfigError` when two directories conflict with each other. Source: storage 1.1.

    One directory may be in several sets: names of files do not collide.
    """
    spelled: dict[str, str] = {}
    for name in ("journal_directories", "ledger_directories", "index_directories"):
        directories: tuple[str, ...] = getattr(config, name)
        if not directories and name != "index_directories":
            raise ConfigError(f"{name} is empty: name a directory")
        for number, directory in enumerate(directories):
            if not directory or any(character in directory for character in ",\t\n"):
                raise ConfigError(f"{name}: {directory!r} cannot be a directory: no name, or a comma, tab or newline")
            if directory in directories[:number]:
                raise ConfigError(f"{name}: {directory} is named twice")
            known = spelled.setdefault(posixpath.normpath(directory), directory)
            if known != directory:
                raise ConfigError(f"{known} and {directory} are one directory: write it in one way only")
    if config.ledger_index not in LEDGER_INDEXES:
        raise ConfigError(f"ledger_index = {config.ledger_index!r}: must be one of {', '.join(LEDGER_INDEXES)}")
    if config.ledger_index == ROCKSDB and len(config.index_directories or config.ledger_directories) != len(
        config.ledger_directories
    ):
        raise ConfigError(
            f"ledger_index = rocksdb with {len(config.ledger_directories)} ledger_directories and "
            f"{len(config.index_directories)} index_directories: they are pairs, so their numbers must be equal"
        )
    for directory in spelled:
        for other, as_given in spelled.items():
            if f"{directory}/".startswith(f"{posixpath.join(other, 'current')}/"):
                raise ConfigError(
                    f"{spelled[directory]} is inside of {as_given}/current, which is for the bookie's own files only: "
                    "name a directory elsewhere"
                )


def _validate_compaction(config: BookieConfig) -> None:
    """Raise `ConfigError` when the settings of collection and compaction contradict each other. Source: storage 7.5."""
    if config.compaction not in ("transactional", "plain"):
        raise ConfigError(f"compaction = {config.compaction!r}: transactional or plain")
    minor, major = config.minor_compaction_interval_ms, config.major_compaction_interval_ms
    for name, interval in (("minor", minor), ("major", major)):
        if 0 < interval < config.gc_interval_ms:
            raise ConfigError(
                f"{name}_compaction_interval_ms = {interval} is less than gc_interval_ms = {config.gc_interval_ms}: "
                "compaction is a part of collection"
            )
    if minor and major and minor >= major:
        raise ConfigError(
            f"minor_compaction_interval_ms = {minor} is not less than major_compaction_interval_ms = {major}"
        )
    if major and config.minor_compaction_threshold >= config.major_compaction_threshold:
        raise ConfigError(
            f"minor_compaction_threshold = {config.minor_compaction_threshold} is not less than "
            f"major_compaction_threshold = {config.major_compaction_threshold}"
        )


def _validate_disks(config: BookieConfig) -> None:
    """Raise `ConfigError` when the thresholds of a disk are not in order. Source: storage 8.1."""
    full = config.disk_usage_threshold
    for name in ("disk_usage_warn_threshold", "disk_usage_lwm_threshold"):
        if (value := getattr(config, name)) > full:
            raise ConfigError(f"{name} = {value}: must be at most disk_usage_threshold = {full}")
    if config.disk_usage_priority_threshold < full:
        raise ConfigError(
            f"disk_usage_priority_threshold = {config.disk_usage_priority_threshold} is less than "
            f"disk_usage_threshold = {full}: recoveries need free space wherever ordinary adds have it"
        )


def _validate_placement(config: ClientConfig) -> None:
    """Raise `ConfigError` for a placement that no cluster could meet."""
    if config.placement not in PLACEMENTS:
        raise ConfigError(f"placement = {config.placement!r}: must be one of {', '.join(PLACEMENTS)}")
    if config.placement == "zone" and config.zones_min > config.zones_desired:
        raise ConfigError(f"zones_min = {config.zones_min} is more than zones_desired = {config.zones_desired}")
    if config.regions_min > 1 and config.placement != "region":
        raise ConfigError(f"regions_min = {config.regions_min} needs placement = region, it is {config.placement}")
    if config.placement == "random" and (config.placement_rule or config.fault_domains_min > 1):
        name = "placement_rule = true" if config.placement_rule else f"fault_domains_min = {config.fault_domains_min}"
        raise ConfigError(f"{name}: placement = random has no rule to keep; use placement = rack")


def _validate_tls(config: BookieConfig | ClientConfig) -> None:
    """Raise `ConfigError` for TLS settings that contradict each other, or that would have no effect."""
    if config.tls_version_min not in TLS_VERSIONS:
        raise ConfigError(f"tls_version_min = {config.tls_version_min!r}: must be 1.2 or 1.3")
    if config.tls_key and not config.tls_certificate:
        raise ConfigError("tls_key without tls_certificate: name the file of the certificate too")
    if isinstance(config, ClientConfig):
        useless = [name for name in ("tls_authority", "tls_certificate", "tls_port") if getattr(config, name)]
        if useless and not config.tls:
            raise ConfigError(f"{useless[0]} without tls = true: connections would not be encrypted")
        return
    if config.tls_client_certificates and not config.tls_authority:
        raise ConfigError("tls_client_certificates = true needs tls_authority: whose certificates are accepted?")
    if not config.tls_certificate:
        wants = [name for name in ("tls_client_certificates", "tls_required") if getattr(config, name)]
        wants += ["tls_port"] if config.tls_port >= 0 else []
        wants += ["http_tls"] if config.http_tls else []
        if wants:
            raise ConfigError(f"{wants[0]} needs tls_certificate: without it nothing can be encrypted")


def _validate_authentication(config: BookieConfig) -> None:
    """Raise `ConfigError` when no peer could be authenticated, or any peer."""
    if config.authentication not in AUTHENTICATIONS:
        raise ConfigError(f"authentication = {config.authentication!r}: none, sasl or certificate")
    if config.authentication == "sasl":
        if not config.users_file:
            raise ConfigError("authentication = sasl needs users_file: without users no client can connect")
        pattern = config.sasl_allowed_ids
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"sasl_allowed_ids = {pattern!r}: not a regular expression: {error}") from error
    elif config.kerberos_keytab:
        raise ConfigError(f"kerberos_keytab needs authentication = sasl, and it is {config.authentication}")
    has_users = config.authorized_roles or config.users_file
    if config.authentication == "certificate" and not (has_users and config.tls_client_certificates):
        raise ConfigError(
            "authentication = certificate needs authorized_roles or users_file, and tls_client_certificates = true: it "
            "checks the certificates of clients"
        )


def unit_of(name: str) -> str:
    """Return the unit of a setting's number: ms, s, bytes or percent; empty: a count, or no number."""
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


def parse_value(default: Any, text: str, name: str) -> Any:
    """Return the value of a setting with this default from text. Raises `ConfigError`.

    Durations and sizes may have a unit, such as `10m` or `64m`. `name`: ends in that of the setting, in any case.
    """
    try:
        if isinstance(default, tuple):
            return tuple(part for part in text.split(",") if part)
        if isinstance(default, bool):
            return SWITCHES[text.lower()]
        return parse_number(text, unit_of(name.lower())) if isinstance(default, int) else text
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{name}={text!r}: {_wanted(default, text, unit_of(name.lower()))}") from error


def _wanted(default: Any, value: object, unit: str) -> str:
    """Return what the value of a setting must be, with an example."""
    if isinstance(default, bool):
        return "must be true or false, without quotes"
    if isinstance(default, str):
        return f'must be text; write "{value}"'
    if isinstance(default, tuple):
        if isinstance(value, list) and value and all(isinstance(part, str) for part in value):  # from Python
            return f"must be a tuple; write {tuple(value)}"
        return f'must be a list of texts; write ["{value if isinstance(value, str) else "/a"}"]'
    number = re.fullmatch(r"([0-9]+) *%", str(value))
    example = number[1] if number else EXAMPLES.get(unit)
    return f"no whole number{f' of {unit}' if unit else ''}{f'; write {example}' if example else ''}"
