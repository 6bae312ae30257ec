"""Client of a schema registry with Confluent's HTTP interface. A process asks for each schema once.

An id never changes its schema, so a schema is kept for the life of the process. That an id is unknown is kept for a
minute only: it may be registered later.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from bookies.encoding.documents import parse_json
from bookies.errors import InvalidArgument, SchemaIncompatible, SchemaNotFound, SchemaRegistryFailed
from bookies.protocol.payloads.schemas import AVRO, PROTOBUF

ATTEMPTS = 4
DELAY_S, TIMEOUT_S = 0.25, 10.0  # before the second attempt, doubled for each further one; for one request
UNKNOWN_S = 60.0  # an unknown id is asked for again after this time
UNKNOWN_MAX = 100  # ids that are asked for in vain before the payloads count as having no ids
_NAMES = {AVRO: "AVRO", PROTOBUF: "PROTOBUF"}
_CONTENT = "application/vnd.schemaregistry.v1+json"


class Registered(Struct, frozen=True):
    """A schema of the registry."""

    id: int
    text: str


class Registry(Struct, frozen=True):
    """A registry by its address. `user_info`: `USER:PASSWORD` for basic authentication; empty: none."""

    url: str
    user_info: str = ""

    def __repr__(self) -> str:
        """Describe the registry without the password."""
        return f"<Registry {self.url}>"

    def schema(self, schema_id: int, schema_format: str = AVRO) -> Registered:
        """Return the schema of an id. Raises `SchemaNotFound`, `SchemaRegistryFailed`, `InvalidArgument`."""
        known = _known.setdefault(self, {})
        if (schema := known.get(schema_id)) is not None:
            return schema
        unknown = _unknown.setdefault(self, {})
        for number in [number for number, until_s in unknown.items() if until_s <= now_s()]:
            del unknown[number]
        try:
            if schema_id in unknown:
                raise SchemaNotFound("it was asked for a short time ago")
            if len(unknown) >= UNKNOWN_MAX:
                raise InvalidArgument(
                    f"schema registry {self.url} does not know {UNKNOWN_MAX} of the schema ids in payloads: they are "
                    "probably no ids; set option valueFraming=bare and give the schema with valueSchemaFile"
                )
            answer = self._ask("GET", f"/schemas/ids/{schema_id}{_form(schema_format)}")
        except SchemaNotFound:
            unknown.setdefault(schema_id, now_s() + UNKNOWN_S)
            raise SchemaNotFound(f"schema registry {self.url} has no schema with id {schema_id}") from None
        known[schema_id] = self._registered({**answer, "id": schema_id}, schema_format)
        return known[schema_id]

    def latest(self, subject: str, schema_format: str = AVRO) -> Registered | None:
        """Return the newest schema of a subject; None: the subject has none. Raises `SchemaRegistryFailed`."""
        path = f"/subjects/{_quoted(subject)}/versions/latest{_form(schema_format)}"
        try:
            schema = self._registered(self._ask("GET", path), schema_format)
        except SchemaNotFound:
            return None
        _known.setdefault(self, {})[schema.id] = schema
        return schema

    def register(self, subject: str, schema_format: str, text: str) -> int:
        """Make a schema the newest of a subject, unless the subject has it, and return its id.

        Raises `SchemaIncompatible` if the subject's rule refuses it, `SchemaRegistryFailed`.
        """
        if (self, subject, text) in _added:
            return _added[self, subject, text]
        body = {"schema": text, "schemaType": _NAMES[schema_format]}
        path = f"/compatibility/subjects/{_quoted(subject)}/versions/latest?verbose=true"
        try:
            answer = self._ask("POST", path, body)
        except SchemaNotFound:
            answer = {}  # It will be the first version.
        if answer.get("is_compatible", True) is not True:
            reasons = "; ".join(map(str, answer.get("messages", ()))) or "it does not say why"
            raise SchemaIncompatible(
                f"schema registry {self.url} refuses the schema for subject {subject}: {reasons}. Write columns that "
                "fit the newest version, or change the subject's compatibility"
            )
        number = int(self._ask("POST", f"/subjects/{_quoted(subject)}/versions", body)["id"])
        _added[self, subject, text] = number
        return number

    def _registered(self, answer: Mapping[str, Any], schema_format: str) -> Registered:
        kind, text = answer.get("schemaType", "AVRO"), answer.get("schema")
        if kind != _NAMES[schema_format] and isinstance(text, str):
            raise InvalidArgument(
                f"schema {answer['id']} of schema registry {self.url} is one of {kind}: set another valueFormat than "
                f"{schema_format}, or another subject"
            )
        if not isinstance(text, str):
            raise SchemaRegistryFailed(f"schema registry {self.url} answered with no schema: {str(answer)[:200]}")
        if answer.get("references"):
            raise InvalidArgument(
                f"schema {answer.get('id')} of schema registry {self.url} refers to other schemas: give a file that "
                "has them all with option valueSchemaFile"
            )
        return Registered(int(answer["id"]), text)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer of a request. Repeats it after failures of the network and of the server."""
        import http.client  # few processes ask a registry
        import urllib.error
        import urllib.request

        request = urllib.request.Request(
            self.url.rstrip("/") + path,
            None if body is None else json.dumps(body).encode(),
            {"Accept": _CONTENT, "Content-Type": _CONTENT},
            method=method,
        )
        if self.user_info:
            # The server that a redirect names must not get the password.
            user = base64.b64encode(self.user_info.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {user}")
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                sleep(DELAY_S * 2 ** (attempt - 1))
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                    content = parse_json(answer.read())
                if isinstance(content, dict):
                    return content
                problem = "the answer is no JSON object"
            except urllib.error.HTTPError as error:
                code, text = _explained(error)
                if code // 100 == 404:
                    raise SchemaNotFound(f"schema registry {self.url}: {text}") from None
                if error.code in (409, 422):
                    raise SchemaIncompatible(f"schema registry {self.url} refuses the schema: {text}") from None
                problem = f"HTTP {error.code}: {text}"
                if error.code < 500 and error.code != 429:
                    break
            except (OSError, ValueError, http.client.HTTPException) as error:
                problem = str(error)
        raise SchemaRegistryFailed(
            f"schema registry {self.url} did not answer {method} {path} ({problem}): check option schemaRegistry and "
            "that the registry runs, and repeat the query"
        )


_known: dict[Registry, dict[int, Registered]] = {}
_unknown: dict[Registry, dict[int, float]] = {}  # until when, by id
_added: dict[tuple[Registry, str, str], int] = {}  # ids by registry, subject and schema
sleep: Callable[[float], None] = time.sleep
now_s: Callable[[], float] = time.monotonic


def opened_registry(url: str, user_info: str = "") -> Registry:
    """Return the registry of an address. Raises `InvalidArgument`."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise InvalidArgument(
            "option schemaRegistry: expected an address such as http://registry:8081, without a password; that is "
            "option schemaRegistry.userInfoFile"
        )
    return Registry(url, user_info)


def _explained(error: Any) -> tuple[int, str]:
    """Return the number and the text of a refusal. A registry gives 404xx for what it lacks, a proxy none."""
    import http.client

    text = ""
    try:
        data = error.read()
        text = data.decode("utf-8", "replace")[:300]
        code = parse_json(data)["error_code"]
    except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError):
        code = 0
    return (code if isinstance(code, int) else 0), text


def _form(schema_format: str) -> str:
    """Return the query that asks for descriptors of Protobuf, not for their source. For Avro it would be an error."""
    return "?format=serialized" if schema_format == PROTOBUF else ""


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")
