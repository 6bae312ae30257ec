"""Prometheus's text format 0.0.4, which every scraper accepts.

Written here although `prometheus_client` has a writer: that one names every counter `..._total`, and Apache's counters,
whose names dashboards ask for, do not end so. Its parser checks this one in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from bookies.metrics.metric import Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def exposition(families: Iterable[Family]) -> Iterator[str]:
    """Yield the text of one family after the other. A family without samples is left out."""
    for family in families:
        if not family.samples:
            continue
        lines = [f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind.value}\n"]
        for name, labels, value in family.samples:
            text = ",".join(f'{label}="{content.translate(_ESCAPED)}"' for label, content in labels)
            lines.append(f"{name}{{{text}}} {number(value)}\n" if text else f"{name} {number(value)}\n")
        yield "".join(lines)


def number(value: float) -> str:
    """Return a value as Prometheus writes it."""
    if isinstance(value, bool | int):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
