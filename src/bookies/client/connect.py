"""`connect`: a client for a running cluster, given the URI of its metadata store."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack

from bookies.client.base import Opening
from bookies.client.client import Client
from bookies.config import ClientConfig
from bookies.configuration import configured
from bookies.errors import InvalidArgument, MetadataError

P = ParamSpec("P")
R = TypeVar("R")


class ClientSettings(TypedDict, total=False):
    """The keywords of `connect` that are settings: the fields of `ClientConfig`. None: not set."""

    memory_limit: int | None
    add_timeout_ms: int | None
    read_timeout_ms: int | None
    connect_timeout_ms: int | None
    frame_size_max: int | None
    slow_request_ms: int | None
    wire: str | None
    read_ahead_size: int | None
    hedge_delay_min_ms: int | None
    hedge_delay_max_ms: int | None
    hedged_reads: bool | None
    sticky_reads: bool | None
    digest_autodetection: bool | None
    explicit_lac_interval_ms: int | None
    ensemble_changes_max: int | None
    ensemble_changes_allowed: bool | None
    delay_ensemble_change: bool | None
    add_quorum_timeout_ms: int | None
    opportunistic_striping: bool | None
    placement: str | None
    placement_rule: bool | None
    racks_min: int | None
    regions_min: int | None
    zones_min: int | None
    zones_desired: int | None
    fault_domains: str | None
    fault_domains_min: int | None
    locations_file: str | None
    locations_script: str | None
    locations_script_names_max: int | None
    locations_script_timeout_ms: int | None
    locations_interval_ms: int | None
    disk_weights: bool | None
    disk_weight_max: int | None
    disk_weight_interval_ms: int | None
    location: str | None
    near_reads: bool | None
    locations_preferred: str | None
    locations_banned: str | None
    tls: bool | None
    tls_authority: str | None
    tls_authority_password_file: str | None
    tls_certificate: str | None
    tls_key: str | None
    tls_key_password_file: str | None
    tls_check_host_name: bool | None
    tls_port: int | None
    tls_version_min: str | None
    tls_ciphers: str | None
    tls_reload_interval_ms: int | None
    sasl_file: str | None


def lists_settings(function: Callable[P, R]) -> Callable[P, R]:
    """Let the signature of a function with `**settings` list them, for `help` and the documentation."""
    signature = inspect.signature(function)
    *parameters, timeout, _ = signature.parameters.values()
    parameters += [
        timeout.replace(name=field.name, annotation=f"{field.type} | None") for field in fields(ClientConfig)
    ]
    function.__signature__ = signature.replace(parameters=[*parameters, timeout])  # type: ignore[attr-defined]
    return function


@lists_settings
def connect(
    uri: str, *, config: ClientConfig | None = None, timeout: float | None = None, **settings: Unpack[ClientSettings]
) -> Opening[Client]:
    """Connect to the cluster whose metadata store is at `uri`: `async with connect(uri) as store`, or await it.

    * `file:DIRECTORY`: embedded store, for one machine.
    * `memory:NAME`: store in this process.
    * `zk://HOST:2181/ledgers`: ZooKeeper, in Apache's layout.
    * `etcd://HOST:2379/SCOPE`: etcd; needs the extra `etcd`.

    The other keywords are the fields of `ClientConfig`. A field that is set neither here nor in `config` comes from its
    BK_... environment variable, then from [client] of the file of BK_CONFIG. `timeout`: seconds.

    Raises `ConfigError` and `InvalidArgument`. Raises `MetadataError` if the store or a cluster in it does not exist: a
    client never creates one.
    """
    values: dict[str, Any] = {**settings}
    given = {field.name: value for field in fields(ClientConfig) if (value := values.pop(field.name, None)) is not None}
    if values:
        raise TypeError(f"connect() got an unexpected keyword argument {next(iter(values))!r}")
    if not isinstance(uri, str):
        raise InvalidArgument(f"uri={uri!r}: must be text, as 'file:DIRECTORY', not {type(uri).__name__}")
    if config is not None and not isinstance(config, ClientConfig):
        raise InvalidArgument(f"config={config!r}: must be a ClientConfig, not {type(config).__name__}")
    if config is not None and given:
        raise InvalidArgument(f"pass either config= or {', '.join(given)}=, not both")
    chosen = config or configured(ClientConfig, **given)
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
