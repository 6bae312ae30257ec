"""Options of the source, the sink and the jobs: the table's rows, values, and messages about wrong ones.

An `Option` is one row: name, default, help, kind. The source and the sink declare theirs as fields of a dataclass
(`option`), a job as a tuple. Their pages are generated from these rows.

Spark passes keys in lower case and values as text, and a misspelt name would be silent. So every name is checked, and
the nearest existing one is suggested. Secrets are given by reference, because options appear in query plans.
Source: spark 3.3.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bookies.config import ClientConfig, validate
from bookies.distributedlog.formats.log_names import DEFAULT_NAME, is_namespace
from bookies.encoding.documents import parse_json
from bookies.errors import ConfigError, InvalidArgument
from bookies.units import parse_duration, parse_size

URI = "bookkeeper.metadataServiceUri"
CLIENT_OPTIONS = (URI, "bookkeeper.passwordFile", "bookkeeper.passwordEnv")
VIEW = "use bookies.spark.register_logs, or CREATE TEMPORARY VIEW name USING bookkeeper OPTIONS (...)"


@dataclass(frozen=True)
class Option:
    """One option. `kind` converts its text to a value, and raises `ValueError` about any other text.

    `default`: of a job's option its value, of another one its text; None: required, computed, or no limit. `help`:
    empty if Spark sets the option.
    """

    name: str
    default: Any
    help: str
    kind: Callable[[str], Any] = str
    choices: Sequence[Any] | None = None
    metavar: str | None = None
    is_positional: bool = False  # given on the command line without its name
    is_many: bool = False  # a list of at least one


def option(name: str, help: str, kind: Callable[[str], Any] = str, default: str | None = None) -> Any:
    """Declare a field that an option of the source or of the sink sets."""
    value = None if default is None else kind(default)
    return dataclasses.field(default=value, metadata={"option": Option(name, default, help, kind)})


def options_of(settings: type) -> dict[str, Option]:
    """Return the options of a class of settings, by field."""
    return {
        field.name: field.metadata["option"] for field in dataclasses.fields(settings) if "option" in field.metadata
    }


def names_of(settings: type) -> tuple[str, ...]:
    """Return the names of a class's options."""
    return tuple(one.name for one in options_of(settings).values())


def values_of(settings: type, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the fields that the options set. `options`: under their proper names.

    An empty text is the default, except for texts. Raises `InvalidArgument`.
    """
    values = {}
    for field, one in options_of(settings).items():
        text = options.get(one.name)
        if text is None or (one.kind is not str and not text.strip()):
            continue
        try:
            values[field] = one.kind(text)
        except InvalidArgument:
            raise
        except ValueError as error:
            raise InvalidArgument(f"option {one.name}={text!r}: {error}") from None
    return values


# -- kinds of values: each function returns the value of a text. Raises `ValueError` with what is expected ------------


def flag(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.strip().lower() == "true"


def size(text: str) -> int:
    """Return a count or a size above 0, which may end in k, m or g (powers of 1,024)."""
    if not (number := parse_size(text)):
        raise ValueError("expected a whole number above 0 (k, m, g allowed)")
    return number


def whole_number(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit()):
        raise ValueError("expected a whole number of 0 or more")
    return int(text)


def milliseconds(text: str) -> float:
    """Return the seconds of a whole number of milliseconds."""
    return whole_number(text) / 1000


def duration(expected: str) -> Callable[[str], float]:
    """Return the kind of durations, in seconds. `expected`: their form, for the message."""

    def seconds(text: str) -> float:
        if (value := parse_duration(text)) is None:
            raise ValueError(f"expected {expected}")
        return value

    return seconds


def one_of(*allowed: str, expected: str = "") -> Callable[[str], str]:
    """Return the kind of texts that are one of `allowed`, ignoring case."""

    def choice(text: str) -> str:
        for candidate in allowed:
            if candidate.lower() == text.strip().lower():
                return candidate
        raise ValueError(f"expected {expected or ', '.join(allowed)}")

    return choice


# -- names and values of several options -------------------------------------------------------------------------------


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


def namespace_uri(options: Mapping[str, str]) -> str:
    """Return the URI of the namespace of DistributedLog that option `namespace` names."""
    uri = options["namespace"].strip()
    return uri if is_namespace(uri) else f"{uri}#{DEFAULT_NAME}"


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


def json_object(options: Mapping[str, str], name: str, example: str) -> dict[str, Any]:
    """Parse an option that is a JSON object. Raises `InvalidArgument`."""
    try:
        content = parse_json(options[name])
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
