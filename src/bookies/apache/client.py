"""Client settings from Apache's configuration. `client_keys` lists the keys.

Only keys in the file count: Apache's defaults for the others are not assumed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from bookies.apache.client_keys import CLIENT
from bookies.apache.placement import client_placement
from bookies.apache.properties import parse_properties
from bookies.apache.security import check_client_authentication, client_tls
from bookies.apache.table import Notice, layer_of, metadata_uri, number, seconds, secure_metadata, translate, value_of
from bookies.config import ClientConfig
from bookies.configuration import settings_of
from bookies.errors import ConfigError


class ClientOptions(Struct, frozen=True):
    """Settings for `connect(options.uri, config=options.config)`. `uri`: empty if the file names no store.

    `notices`: requests of the file that are not met, each with the alternative.
    """

    uri: str
    config: ClientConfig
    notices: tuple[Notice, ...]


def client_options(source: str | os.PathLike[str] | Mapping[str, str]) -> ClientOptions:
    """Convert a properties file of Apache's, or its keys and values, to settings.

    BK_... environment variables, then the file of BK_CONFIG, apply to settings that the file does not have.
    Raises `ConfigError` for a file or a value that cannot be read, and for keys that must not be ignored.
    """
    properties = source if isinstance(source, Mapping) else read_properties(source)
    settings, notices = translate(CLIENT, properties)
    uri = metadata_uri(properties)
    secure_metadata(properties, uri)
    _timeouts(properties, settings)
    client_tls(properties, settings, notices)
    client_placement(properties, settings, notices)
    config = settings_of(ClientConfig, layer_of(CLIENT, properties, settings, "Apache's configuration")).config
    check_client_authentication(properties, config.sasl_file)
    return ClientOptions(uri or "", config, tuple(notices))


def read_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read a properties file. Raises `ConfigError`."""
    from bookies.runtime.files import OsDisk

    try:
        return parse_properties(OsDisk().read_bytes(os.fspath(path)).decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text: {error}") from error


def _timeouts(properties: Mapping[str, str], settings: dict[str, Any]) -> None:
    """Convert settings that have an older and a newer key, and the one whose 0 means never."""
    older = value_of(properties, "readTimeout", seconds)
    if older is not None:
        settings.setdefault("read_timeout_ms", older)
    delay = value_of(properties, "speculativeReadTimeout", number)
    newer = value_of(properties, "firstSpeculativeReadTimeout", number)
    delay = delay if newer is None else newer
    if delay is not None and delay > 0:
        settings["hedge_delay_max_ms"] = delay
    elif delay is not None:
        settings["hedged_reads"] = False
