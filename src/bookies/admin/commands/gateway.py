"""`bk gateway`: data over HTTP, for programs in any language and for curl."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import Option, verb
from bookies.admin.shared.common import metadata_uri, run_async, web_site

if TYPE_CHECKING:
    from bookies.metadata.interface import MetadataDriver
    from bookies.web.routes import Route
    from bookies.web.site import Process


def _settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the settings of `--set`. Raises `UsageError`, `ConfigError`."""
    from bookies.config import GatewayConfig, parse_value

    defaults = {field.name: field.default for field in fields(GatewayConfig)}
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in defaults:
            raise UsageError(f"--set {pair}: expected NAME=VALUE; a gateway has {', '.join(defaults)}")
        values[name] = parse_value(defaults[name], text, name)
    return values


def ledger_routes(process: Process) -> list[Route]:
    """Return the verbs about ledgers: list, show, explain, delete."""
    from bookies.admin.remote import remote_api
    from bookies.web.apache_bookie import API

    return [route for route in remote_api.verb_routes(process) if route.path.startswith(f"{API}/ledgers")]


def _run(arguments: argparse.Namespace) -> int:
    from bookies.bookie.main import configure_logging
    from bookies.config import ClientConfig, GatewayConfig
    from bookies.configuration import configured
    from bookies.metadata.uri import connect
    from bookies.runtime import aio
    from bookies.runtime.service_manager import service_manager

    web_site()  # or the error that names the extra
    from bookies.web.data.gateway import Gateway

    uri = metadata_uri(arguments)
    given = {"http_port": arguments.port, "users_file": arguments.users}
    config = configured(
        GatewayConfig,
        **{name: value for name, value in given.items() if value is not None},
        **_settings(arguments.set),
    )
    client_config = configured(ClientConfig)
    configure_logging()

    async def main() -> int:
        import asyncio

        runtime = aio.runtime()

        def open_driver() -> MetadataDriver:
            return connect(uri, runtime, may_create=False)

        manager = service_manager(os.environ)
        gateway = Gateway(runtime, config, client_config, open_driver, ledger_routes)
        async with manager.alive(), gateway.running() as (host, port):
            text = f"gateway on {'https' if config.http_tls else 'http'}://{host}:{port}"
            print(text, flush=True)
            with manager.serving(text):
                await asyncio.get_running_loop().create_future()  # A signal cancels it.
        return 0

    try:
        return run_async(main)
    except KeyboardInterrupt:
        return 0  # A signal is the regular end.


VERBS = (
    verb(
        "gateway run",
        "serve logs and ledgers over HTTP in the foreground until SIGTERM",
        "bk gateway run --users users --port 8081",
        _run,
        Option("--users FILE", "file of users, written by `bk token add` (default: the setting users_file)"),
        Option("--port", "port to listen on (default: the setting http_port, 8081); 0: any free one", int),
        Option(
            "--set NAME=VALUE",
            "setting, may be repeated; also BK_NAME variables and [gateway] of --config",
            may_repeat=True,
        ),
        description="Appends, reads, tails and cursors for programs in any language, described by /openapi.json. "
        "SIGTERM ends it after the requests in progress. Settings: docs/reference/settings.md.",
    ),
)
