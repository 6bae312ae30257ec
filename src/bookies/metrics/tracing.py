"""OpenTelemetry spans of a client's calls, by a wrapper around the client: a client without one costs nothing.

A span covers one call, such as an append, and is a child of the application's present span. If it is sampled, the
requests of appends and of reads of one entry carry its identity, so that a bookie can make spans below it: see
`bookie/served.py`. They go over the v3 connection then, since v2 has no place for it. Source: operations 3.4.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Sized
from typing import Any, cast

from bookies.client.client import Client
from bookies.errors import InvalidArgument, NotSupported

OPENINGS = ("create", "open", "recover", "writer", "reader")  # return a handle that is opened by `await`
GROUPS = ("log",)  # return an object whose methods are traced too


def trace(client: Client, tracer_provider: Any = None) -> Client:
    """Return the client with an OpenTelemetry span for each call of it, of its ledgers and of its logs.

    * `client`: from `bookies.connect`.
    * `tracer_provider`: None: the global one.

    Iterations over entries (`read`, `tail`) and calls that return at once (`append_nowait`) have no span. Bookies
    with the setting `spans` make spans below those of appends and of `read_entry`, of writers created from here on.

    Raises `NotSupported` without the package `opentelemetry-api` (extra `otel`), `InvalidArgument` for an object that
    is no client with asyncio.
    """
    if not isinstance(client, Client):
        raise InvalidArgument(f"trace({client!r}): expected a client, as bookies.connect returns it")
    try:
        from opentelemetry import trace as api
    except ImportError as error:
        raise NotSupported("spans need the package opentelemetry-api: pip install 'bookies[otel]'") from error
    client.traced_by(functools.partial(_present, api.get_current_span))
    return cast(Client, _Traced(client, api.get_tracer("bookies", tracer_provider=tracer_provider)))


class _Traced:
    """A client, a handle, or a group of handles, with spans."""

    def __init__(self, inner: Any, tracer: Any) -> None:
        self._inner = inner
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name in OPENINGS:
            return lambda *given, **named: _TracedOpening(value(*given, **named), self, name)
        if name in GROUPS:
            return lambda *given, **named: _Traced(value(*given, **named), self._tracer)
        if not inspect.iscoroutinefunction(value):
            return value

        @functools.wraps(value)
        async def call(*given: Any, **named: Any) -> Any:
            with self.span(name, given) as span:
                result = await value(*given, **named)
                if isinstance(result, int):
                    span.set_attribute("bookies.result", result)
                return result

        return call

    def span(self, name: str, given: tuple[Any, ...] = ()) -> Any:
        """Return the context of a new span for a call with these arguments."""
        attributes: dict[str, Any] = {}
        ledger_id = getattr(self._inner, "ledger_id", given[0] if given else None)
        if isinstance(ledger_id, int):
            attributes["bookies.ledger"] = ledger_id
        if name.startswith("append") and given and isinstance(given[0], Sized):
            attributes["bookies.bytes" if name == "append" else "bookies.entries"] = len(given[0])
        return self._tracer.start_as_current_span(
            f"{type(self._inner).__name__.removeprefix('Traced')}.{name}", kind=_client_kind(), attributes=attributes
        )

    async def __aenter__(self) -> _Traced:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._inner.__aexit__(*error)

    def __repr__(self) -> str:
        return repr(self._inner)


class _TracedOpening:
    """A handle that is being opened: see `client.base.opening.Opening`."""

    def __init__(self, opening: Any, owner: _Traced, name: str) -> None:
        self._opening = opening
        self._owner = owner
        self._name = name

    def __await__(self) -> Generator[Any, None, _Traced]:
        return self.begin().__await__()

    async def begin(self) -> _Traced:
        with self._owner.span(self._name):
            return _Traced(await self._opening.begin(), self._owner._tracer)

    async def __aenter__(self) -> _Traced:
        with self._owner.span(self._name):
            return _Traced(await self._opening.__aenter__(), self._owner._tracer)

    async def __aexit__(self, *error: Any) -> Any:
        return await self._opening.__aexit__(*error)


def _present(current_span: Callable[[], Any]) -> str:
    """Return the identity of the present span as W3C's `traceparent`; empty: there is none, or it is not sampled."""
    context = current_span().get_span_context()
    if not context.is_valid or not context.trace_flags.sampled:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"


def _client_kind() -> Any:
    from opentelemetry.trace import SpanKind

    return SpanKind.CLIENT
