"""Options of the source, the sink and the jobs: their names, their values, and what is said about wrong ones.

Spark hands over keys in lower case and values as text, and a typing error would be silent; so every name is checked,
and the nearest one that exists is suggested. Secrets are given by reference: options show up in query plans.
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

URI = "bookkeeper.metadataServiceUri"
CLIENT_OPTIONS = (URI, "bookkeeper.passwordFile", "bookkeeper.passwordEnv")
VIEW = "use CREATE TEMPORARY VIEW name USING bookkeeper OPTIONS (...)"
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SCALES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def proper_names(options: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """The options under their proper names: those in `known`, and `CLIENT_OPTIONS`. Raises `InvalidArgument`."""
    settings = [option for option, _ in _client_settings().values()]
    proper = {name.lower(): name for name in (*known, *CLIENT_OPTIONS, *settings)}
    if "provider" in options and "owner" in options:  # What Spark adds to the options of CREATE TABLE.
        raise InvalidArgument(f"Spark does not keep the options of a table for its queries: {VIEW}")
    found = {}
    for key, value in dict(options).items():
        if key.lower() not in proper:
            near = difflib.get_close_matches(key.lower(), proper, 1)
            hint = f"; did you mean {proper[near[0]]}?" if near else f"; there are {', '.join(known)}"
            raise InvalidArgument(f"unknown option {key!r}{hint}")
        found[proper[key.lower()]] = value
    return found


def metadata_uri(options: Mapping[str, str]) -> str:
    """Raises `ConfigError` when there is none."""
    uri = options.get(URI)
    if not uri and not options:
        raise ConfigError(f"no options, as of a table made by CREATE TABLE or saveAsTable: {VIEW}")
    if not uri:
        raise ConfigError(f"option {URI} is missing: the metadata store's address, such as file:/srv/bk/metadata")
    return uri


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, "").strip().lower()
    if text not in ("", "true", "false"):
        raise InvalidArgument(f"option {name}={text!r}: expected true or false")
    return text == "true" if text else default


def number(options: Mapping[str, str], name: str, default: int) -> int:
    """A count or a size above 0; it may end in k, m or g (powers of 1,024). Raises `InvalidArgument`."""
    text = options.get(name, "").strip().lower()
    if not text:
        return default
    scale = _SCALES.get(text[-1], 1)
    digits = text[:-1] if scale > 1 else text
    if not (digits.isascii() and digits.isdigit()) or int(digits) < 1:
        raise InvalidArgument(f"option {name}={text!r}: expected a whole number above 0 (k, m, g allowed)")
    return int(digits) * scale


def read_password(options: Mapping[str, str]) -> bytes:
    """The ledgers' password, given by reference so that it shows up in no plan. Raises `ConfigError`."""
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
    """One of `allowed`, of which the first is the default; upper and lower case are one. Raises `InvalidArgument`."""
    text = options.get(name, "").strip().lower()
    found = [each for each in allowed if each.lower() == text]
    if text and not found:
        raise InvalidArgument(f"option {name}={options[name]!r}: expected {', '.join(allowed)}")
    return found[0] if found else allowed[0]


def whole_number(options: Mapping[str, str], name: str, default: int) -> int:
    """0 or more. Raises `InvalidArgument`."""
    text = options.get(name, "").strip()
    if text and not (text.isascii() and text.isdigit()):
        raise InvalidArgument(f"option {name}={text!r}: expected a whole number")
    return int(text) if text else default


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """A duration such as 90s, 15m, 2h, 500ms. Raises `InvalidArgument`."""
    text = options.get(name, "").strip().lower()
    if not text:
        return default
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    scale = _SECONDS.get(text[len(digits) :].strip())
    if scale is None or not (digits.isascii() and digits.isdigit()):
        raise InvalidArgument(f"option {name}={text!r}: expected a duration such as 90s, 15m, 2h or 500ms")
    return int(digits) * scale


def json_object(options: Mapping[str, str], name: str, example: str) -> dict[str, Any]:
    """Raises `InvalidArgument`."""
    try:
        content = json.loads(options[name])
        if not isinstance(content, dict):
            raise ValueError("not an object")
    except ValueError as error:
        raise InvalidArgument(f"option {name}={options[name]!r}: expected JSON such as {example}: {error}") from error
    return content


def client_config(options: Mapping[str, str], **settings: object) -> ClientConfig:
    """The client's settings: `settings`, and those given as options (`bookkeeper.readTimeoutMs`).

    Raises `ConfigError`.
    """
    given: dict[str, object] = dict(settings)
    for name, (option, kind) in _client_settings().items():
        if option in options:
            text = options[option].strip()
            try:
                given[name] = text.lower() == "true" if kind == "bool" else int(text) if kind == "int" else text
            except ValueError:
                raise ConfigError(f"option {option}={text!r}: expected a whole number") from None
    return validate(ClientConfig(**given))  # type: ignore[arg-type]


def _client_settings() -> dict[str, tuple[str, str]]:
    """Name of the setting -> (its option, its type)."""
    found = {}
    for each in dataclasses.fields(ClientConfig):
        head, *rest = each.name.split("_")
        found[each.name] = "bookkeeper." + head + "".join(word.capitalize() for word in rest), str(each.type)
    return found
