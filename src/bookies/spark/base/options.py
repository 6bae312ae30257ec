"""Options of the source, the sink and the jobs: names, values, and messages about wrong ones.

Spark passes keys in lower case and values as text, and a misspelt name would be silent. So every name is checked, and
the nearest existing one is suggested. Secrets are given by reference, because options appear in query plans.
Source: spark 3.3.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bookies.config import ClientConfig, validate
from bookies.errors import ConfigError, InvalidArgument
from bookies.units import parse_duration, parse_size

URI = "bookkeeper.metadataServiceUri"
CLIENT_OPTIONS = (URI, "bookkeeper.passwordFile", "bookkeeper.passwordEnv")
VIEW = "use CREATE TEMPORARY VIEW name USING bookkeeper OPTIONS (...)"


def proper_names(options: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """Return the options under their proper names. Raises `InvalidArgument`.

    Allowed are `known`, `CLIENT_OPTIONS`, and the settings of the client.
    """
    settings = [option for option, _ in _client_settings().values()]
    proper = {name.lower(): name for name in (*known, *CLIENT_OPTIONS, *settings)}
    if "provider" in options and "owner" in options:  # Spark adds these to the options of CREATE TABLE.
        raise InvalidArgument(f"Spark does not keep the options of a table for its queries: {VIEW}")
    named = {}
    for key, value in dict(options).items():
        if key.lower() not in proper:
            near = difflib.get_close_matches(key.lower(), proper, 1)
            hint = f"; did you mean {proper[near[0]]}?" if near else f"; there are {', '.join(known)}"
            raise InvalidArgument(f"unknown option {key!r}{hint}")
        named[proper[key.lower()]] = value
    return named


def metadata_uri(options: Mapping[str, str]) -> str:
    """Return the metadata store's URI. Raises `ConfigError` if the option is missing."""
    uri = options.get(URI)
    if not uri and not options:
        raise ConfigError(f"there are no options, as with a table of CREATE TABLE or saveAsTable: {VIEW}")
    if not uri:
        raise ConfigError(f"option {URI} is missing: the metadata store's address, such as file:/srv/bk/metadata")
    return uri


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, "").strip().lower()
    if text not in ("", "true", "false"):
        raise InvalidArgument(f"option {name}={text!r}: expected true or false")
    return text == "true" if text else default


def number(options: Mapping[str, str], name: str, default: int) -> int:
    """Return a count or a size above 0, which may end in k, m or g (powers of 1,024). Raises `InvalidArgument`."""
    text = options.get(name, "").strip().lower()
    if not text:
        return default
    size = parse_size(text)
    if not size:
        raise InvalidArgument(f"option {name}={text!r}: expected a whole number above 0 (k, m, g allowed)")
    return size


def read_password(options: Mapping[str, str]) -> bytes:
    """Return the ledgers' password. It is given by reference, so no query plan shows it. Raises `ConfigError`."""
    if path := options.get("bookkeeper.passwordFile"):
        try:
            with open(path, "rb") as file:
                return file.read().rstrip(b"\n")
        except OSError as error:
            raise ConfigError(f"option bookkeeper.passwordFile: {error}") from error
    if name := options.get("bookkeeper.passwordEnv"):
        if name not in os.environ:
            raise ConfigError(f"option bookkeeper.passwordEnv: the environment has no variable {name}")
        return os.environ[name].encode()
    return b""


def choice(options: Mapping[str, str], name: str, allowed: Sequence[str]) -> str:
    """Return one of `allowed`, ignoring case; the first is the default. Raises `InvalidArgument`."""
    text = options.get(name, "").strip().lower()
    matches = [candidate for candidate in allowed if candidate.lower() == text]
    if text and not matches:
        raise InvalidArgument(f"option {name}={options[name]!r}: expected {', '.join(allowed)}")
    return matches[0] if matches else allowed[0]


def whole_number(options: Mapping[str, str], name: str, default: int) -> int:
    """Return a whole number of 0 or more. Raises `InvalidArgument`."""
    text = options.get(name, "").strip()
    if text and not (text.isascii() and text.isdigit()):
        raise InvalidArgument(f"option {name}={text!r}: expected a whole number")
    return int(text) if text else default


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """Return the seconds of a duration such as 90s, 15m, 2h, 500ms. Raises `InvalidArgument`."""
    text = options.get(name, "").strip().lower()
    if not text:
        return default
    duration = parse_duration(text)
    if duration is None:
        raise InvalidArgument(f"option {name}={text!r}: expected a duration such as 90s, 15m, 2h or 500ms")
    return duration


def json_object(options: Mapping[str, str], name: str, example: str) -> dict[str, Any]:
    """Parse an option that is a JSON object. Raises `InvalidArgument`."""
    try:
        content = json.loads(options[name])
        if not isinstance(content, dict):
            raise ValueError("not an object")
    except ValueError as error:
        raise InvalidArgument(f"option {name}={options[name]!r}: expected JSON such as {example}: {error}") from error
    return content


def client_config(options: Mapping[str, str], **settings: object) -> ClientConfig:
    """Return the client's configuration: `settings`, overridden by options such as `bookkeeper.readTimeoutMs`.

    Raises `ConfigError`.
    """
    given: dict[str, object] = dict(settings)
    for name, (option, type_name) in _client_settings().items():
        if option in options:
            text = options[option].strip()
            try:
                given[name] = (
                    text.lower() == "true" if type_name == "bool" else int(text) if type_name == "int" else text
                )
            except ValueError:
                raise ConfigError(f"option {option}={text!r}: expected a whole number") from None
    return validate(ClientConfig(**given))  # type: ignore[arg-type]


def _client_settings() -> dict[str, tuple[str, str]]:
    """Map the name of each setting to its option and its type."""
    settings = {}
    for setting in dataclasses.fields(ClientConfig):
        head, *rest = setting.name.split("_")
        settings[setting.name] = "bookkeeper." + head + "".join(word.capitalize() for word in rest), str(setting.type)
    return settings
