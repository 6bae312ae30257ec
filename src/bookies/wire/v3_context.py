"""The identity of a trace in the context of a v3 request, as W3C's `traceparent`.

`requestContext` is a list of pairs of text, at the end of the message. Apache's bookies put it into the context of
their log lines and ignore it otherwise. Only a sampled trace is sent, and only a well-formed one is received:
everything else in the context has no meaning here, and is no error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bookies.wire import schema
from bookies.wire.messages import Buffer
from bookies.wire.protobuf import Values

KEY = "traceparent"
_SAMPLED = re.compile("00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f][13579bdf]")


def trace_of(request: Values) -> str:
    """Return the `traceparent` of a sampled trace in a message; empty: there is none that is well formed."""
    for pair in request.get("requestContext", ()):
        if pair["key"] == KEY and _SAMPLED.fullmatch(pair["value"]):
            return str(pair["value"])
    return ""


def ids_of(trace: str) -> tuple[int, int]:
    """Return the ids of the trace and of the caller's span, in what `trace_of` returned."""
    _, trace_id, span_id, _ = trace.split("-")
    return int(trace_id, 16), int(span_id, 16)


def with_trace(frames: Sequence[Buffer], trace: str) -> bytes:
    """Return the frame of one request with the identity of a trace."""
    context = schema.REQUEST.pack({"requestContext": [{"key": KEY, "value": trace}]})
    message = b"".join((*frames, *context))[4:]
    return len(message).to_bytes(4, "big") + message
