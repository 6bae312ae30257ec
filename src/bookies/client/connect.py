"""`connect`: a client for a running cluster, given the URI of its metadata store."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

from bookies.client.base import Opening
from bookies.client.client import Client
from bookies.config import ClientConfig, from_environment
from bookies.errors import InvalidArgument, MetadataError


def connect(
    uri: str,
    *,
    config: ClientConfig | None = None,
    memory_limit: int | None = None,
    add_timeout_ms: int | None = None,
    read_timeout_ms: int | None = None,
    connect_timeout_ms: int | None = None,
    frame_size_max: int | None = None,
    wire: str | None = None,
    read_ahead_size: int | None = None,
    hedge_delay_min_ms: int | None = None,
    hedge_delay_max_ms: int | None = None,
    hedged_reads: bool | None = None,
    sticky_reads: bool | None = None,
    digest_autodetection: bool | None = None,
    explicit_lac_interval_ms: int | None = None,
    ensemble_changes_max: int | None = None,
    ensemble_changes_allowed: bool | None = None,
    delay_ensemble_change: bool | None = None,
    add_quorum_timeout_ms: int | None = None,
    opportunistic_striping: bool | None = None,
    placement: str | None = None,
    placement_rule: bool | None = None,
    racks_min: int | None = None,
    regions_min: int | None = None,
    zones_min: int | None = None,
    zones_desired: int | None = None,
    fault_domains: str | None = None,
    fault_domains_min: int | None = None,
    locations_file: str | None = None,
    locations_script: str | None = None,
    locations_script_names_max: int | None = None,
    locations_script_timeout_ms: int | None = None,
    locations_interval_ms: int | None = None,
    disk_weights: bool | None = None,
    disk_weight_max: int | None = None,
    disk_weight_interval_ms: int | None = None,
    location: str | None = None,
    tls: bool | None = None,
    tls_authority: str | None = None,
    tls_certificate: str | None = None,
    tls_key: str | None = None,
    tls_key_password_file: str | None = None,
    tls_check_host_name: bool | None = None,
    tls_port: int | None = None,
    tls_version_min: str | None = None,
    tls_ciphers: str | None = None,
    tls_reload_interval_ms: int | None = None,
    sasl_file: str | None = None,
    timeout: float | None = None,
) -> Opening[Client]:
    """Connect to the cluster whose metadata store is at `uri`: `async with connect(uri) as store`, or await it.

    * `file:DIRECTORY`: embedded store, for one machine.
    * `memory:NAME`: store in this process.
    * `zk://HOST:2181/ledgers`: ZooKeeper, in Apache's layout; needs the extra `zookeeper`.
    * `etcd://HOST:2379/SCOPE`: etcd; needs the extra `etcd`.

    The other keywords are the fields of `ClientConfig`. A field that is set neither here nor in `config` comes from its
    BK_... environment variable. `timeout`: seconds.

    Raises `ConfigError` and `InvalidArgument`. Raises `MetadataError` if the store or a cluster in it does not exist: a
    client never creates one.
    """
    if not isinstance(uri, str):
        raise InvalidArgument(f"uri={uri!r}: must be text, as 'file:DIRECTORY', not {type(uri).__name__}")
    if config is not None and not isinstance(config, ClientConfig):
        raise InvalidArgument(f"config={config!r}: must be a ClientConfig, not {type(config).__name__}")
    given = {name: value for name, value in locals().items() if name in _SETTINGS and value is not None}
    if config is not None and given:
        raise InvalidArgument(f"pass either config= or {', '.join(given)}=, not both")
    chosen = config or from_environment(ClientConfig, **given)

    return Opening(partial(_opened, uri, chosen), timeout, f"connect to {uri}")


async def _opened(uri: str, config: ClientConfig) -> Client:
    from bookies.metadata import uri as metadata
    from bookies.runtime import aio

    runtime = aio.runtime()
    driver = metadata.connect(uri, runtime, may_create=False)
    client = Client(runtime, driver, config)
    try:
        await client.open_session()
        if await driver.instance_id() is None:
            raise MetadataError(f"there is no cluster at {uri}: start one with `bk up`, or its first bookie")
        return client
    except BaseException:
        await client.close()
        raise


_SETTINGS = tuple(field.name for field in fields(ClientConfig))
