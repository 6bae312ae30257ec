"""Alerts for Prometheus and dashboards for Grafana, as files, and pages about them: `docs/generate.py` writes them.

The tables are `src/bookies/admin/cluster/alerts.py` and `dashboards.py`; `bk up --observe` uses them too.
"""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

HERE = pathlib.Path(__file__).parent
HOWTO = HERE / "howto"
PUBLIC_NAME = re.compile(r"\b(?:bookie_|bookkeeper_|auditor_|replication_|jvm_|process_)\w+")
USAGE_OF_DIRECTORY = re.compile(r"bookie_(ledger|index)_dir_\w+_usage")
PUBLIC_HEAD = """# What public dashboards ask for

The queries of the dashboards for BookKeeper of StreamNative, of lhotari (which Pulsar's chart
contains) and of DataStax's chart, of other lists and alerts, and whether a bookie answers each.
Made by `make docs` from `docs/dashboards.json`. Labels such as `cluster` and `kubernetes_pod_name`
come from the configuration of the scrape.
"""
ALERTS_HEAD = """# Act on an alert

Use this page when an alert of `docs/observe/alerts.yml` fires: it has a section for each alert. The
page is made from the code by `make docs`. [Scrape a bookie with
Prometheus](scrape-with-prometheus.md) explains how to install the rules.

The dashboards *cluster*, *bookie*, *journal*, *storage*, *recovery*, *client* and *spark* in
`docs/observe` show the figures behind the alerts.
"""


def alerts_page() -> str:
    """Return the how-to page of the alerts. Raises LookupError for a how-to page that does not exist."""
    from bookies.admin.cluster.alerts import ALERTS, expression_of

    parts = [ALERTS_HEAD]
    for alert in ALERTS:
        links = []
        for page in alert.pages:
            path = HOWTO / f"{page}.md"
            if not path.exists():
                raise LookupError(f"alert {alert.name}: docs/howto/{page}.md does not exist")
            links.append(f"[{path.read_text().partition(chr(10))[0].removeprefix('# ')}]({page}.md)")
        lasting = "" if alert.lasting == "0m" else f", for {alert.lasting}"
        summary = alert.summary[0].upper() + alert.summary[1:]
        parts.append(
            f"## {alert.name}\n\n{summary}{lasting} ({alert.severity}).\n\n```text\n"
            f"{expression_of(alert.expression)}\n```\n\n{alert.step}\n\nSee: {'; '.join(links)}.\n"
        )
    return "\n".join(parts)


def public_dashboards() -> Any:
    """Return the queries by dashboard, and the reasons of names that are not answered."""
    return json.loads((HERE / "dashboards.json").read_text())


def is_answered(name: str) -> bool:
    """Report whether a series of this name exists."""
    from bookies.admin.cluster.alerts import SUFFIXES, known_metrics

    known = known_metrics()
    if name in known:
        return not SUFFIXES.get(known[name].kind) or known[name].kind.value == "summary"
    base, _, suffix = name.rpartition("_")
    is_part = base in known and f"_{suffix}" in SUFFIXES.get(known[base].kind, ())
    return is_part or bool(USAGE_OF_DIRECTORY.fullmatch(name))


def public_page() -> str:
    """Return the page of public dashboards. Raises LookupError for a name that has neither answer nor reason."""
    document = public_dashboards()
    parts = [PUBLIC_HEAD]
    for board, panels in document["panels"].items():
        parts.append(f"## {board}\n\n| panel | query | answered |\n|---|---|---|")
        for title, query in panels:
            names = dict.fromkeys(PUBLIC_NAME.findall(query))
            unanswered = [name for name in names if not is_answered(name)]
            if missing := [name for name in unanswered if name not in document["reasons"]]:
                raise LookupError(f"{missing[0]} is not answered, and docs/dashboards.json has no reason")
            answer = "; ".join(dict.fromkeys(document["reasons"][name] for name in unanswered)) or "yes"
            cells = [title, f"`{query}`", answer]
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parts.append("")
    return "\n".join(parts)


def files() -> dict[str, str]:
    """Return the generated files by path below `docs`."""
    from bookies.admin.cluster.alerts import alerts_file
    from bookies.admin.cluster.dashboards import DASHBOARDS, dashboard_file

    head = "# Made by docs/generate.py from src/bookies/admin/cluster/alerts.py.\n"
    dashboards = {f"observe/{name}-dashboard.json": dashboard_file(name) for name in DASHBOARDS}
    return {"observe/alerts.yml": head + alerts_file()} | dashboards
