"""Render every combination of the chart's switches and check it: `make chart`. `--write` renders deploy/kubernetes.

Needs `helm`. `--schemas DIR`: kubeconform with the schemas there. `--score`: kube-score. `--server`: the API server of
kubectl's context accepts every object (`--dry-run=server`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from tests.deploy.agreement import KUBERNETES, ROOT, documents, problems

CHART = ROOT / "deploy" / "helm" / "bookies"
RELEASE = ("bk", "--namespace", "bookies", "--kube-version", "1.32.0")
# What every installation names. The committed manifests are for a trial to edit: without TLS.
USERS = {"users.secret": "bk-users"}
PLAIN = {"metadata.uri": "zk://zookeeper:2181/ledgers", "insecure": True}
SWITCHES: tuple[tuple[dict[str, Any], ...], ...] = (
    (
        {"insecure": True},
        {"insecure": True} | USERS,
        {"tls.secret": "bk-tls"} | USERS,
        {"tls.issuer": {"name": "ca"}} | USERS,
    ),
    ({}, {"initialize": True}),
    (
        {},
        {"bookie.spread": "required", "bookie.updateStrategy": "RollingUpdate"},
        {"bookie.zones": [{"name": "a", "replicas": 2}, {"name": "b", "replicas": 1}], "bookie.region": "r"},
    ),
    (
        {},
        {
            "bookie.ledgers": [{"size": "1Gi"}, {"size": "2Gi", "storageClass": "fast"}],
            "bookie.allowStorageExpansion": True,
            "bookie.priorityClassName": "high",
            "bookie.nodeSelector": {"disk": "nvme"},
            "bookie.tolerations": [{"key": "bookies", "operator": "Exists"}],
        },
    ),
    ({"recovery.replicas": 0, "settings.bookie": {"auto_recovery": True}}, {"recovery.replicas": 2}),
    ({"gateway.replicas": 0}, {"gateway.replicas": 2, "gateway.names": ["bk.example.org"]}),
    ({"drain.enabled": False}, {"drain.rate": 33554432}),
    (
        {"networkPolicy.enabled": False},
        {},
        {
            "networkPolicy.egress": [{"ports": [{"port": 2181}]}],
            "networkPolicy.clients": [{"namespaceSelector": {}}],
            "networkPolicy.monitoring": [{"namespaceSelector": {}}],
        },
    ),
    (
        {},
        {
            "monitoring.serviceMonitor": True,
            "monitoring.rules": True,
            "monitoring.dashboards": True,
            "monitoring.labels": {"release": "p"},
            "monitoring.tokenSecret": "bk-token",
        },
    ),
    ({}, {"metadata.secret": "bk-store", "podLabels": {"a": "b"}, "image.pullSecrets": [{"name": "r"}]}),
)
FILES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "bookies.yaml": (PLAIN, ("--no-hooks",)),
    "initialize.yaml": (
        PLAIN | {"initialize": True},
        ("--show-only", "templates/initialize.yaml", "--show-only", "templates/config.yaml"),
    ),
    "drain.yaml": (PLAIN | {"bookie.replicas": 3}, ("--show-only", "templates/drain.yaml")),
}
REFUSED = {
    "metadata.uri is empty": {"insecure": True},
    "no TLS": {"metadata.uri": "x"},
    "no users": {"metadata.uri": "x", "tls.secret": "t"},
    "a gateway needs users": PLAIN | {"gateway.replicas": 1},
    "name one of them": PLAIN | {"tls.secret": "t", "tls.issuer": {"name": "i"}},
    "colour": PLAIN | {"bookie.colour": "red"},
}


def render(values: dict[str, Any], *options: str) -> str:
    """Return the rendered chart. Raises RuntimeError with Helm's message."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *parents, last = name.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    done = subprocess.run(
        ["helm", "template", RELEASE[0], str(CHART), *RELEASE[1:], "--values", "-", *options],
        input=json.dumps(tree),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def combinations() -> Iterator[dict[str, Any]]:
    """Yield the values of every combination that the chart accepts."""
    for chosen in itertools.product(*SWITCHES):
        values: dict[str, Any] = {"metadata.uri": "zk://zk-0.zk:2181;zk-1.zk:2181/ledgers"}
        for part in chosen:
            values |= part
        if values.get("users.secret") or not values["gateway.replicas"]:
            yield values


def tool(words: Sequence[str], text: str, where: str) -> list[str]:
    """Run a checker on a rendered chart. Return its complaint, if it has one."""
    done = subprocess.run(words, input=text, capture_output=True, text=True)
    return [f"{where}: {words[0]}:\n{done.stdout}{done.stderr}"] if done.returncode else []


def written(name: str) -> str:
    """Return the text of a file of deploy/kubernetes."""
    values, options = FILES[name]
    lines = render(values, *options).splitlines()
    kept = [line for line in lines if not line.startswith("# Source:") and "helm.sh/" not in line]
    text = "\n".join(line for line in kept if "managed-by: Helm" not in line and line != "  annotations:") + "\n"
    return f"# Made by `make chart ARGS=--write` from deploy/helm/bookies.\n{text}"


def main() -> int:
    """Check the chart and the manifests. Return 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="render deploy/kubernetes")
    parser.add_argument("--schemas", help="directory with schemas for kubeconform")
    parser.add_argument("--score", action="store_true", help="ask kube-score")
    parser.add_argument("--server", action="store_true", help="ask the API server of kubectl's context")
    arguments = parser.parse_args()
    found: list[str] = []
    for name in FILES:
        path, text = KUBERNETES / name, written(name)
        if arguments.write:
            path.write_text(text)
        elif path.read_text() != text:
            found.append(f"{path} is not what the chart renders: make chart ARGS=--write")
    for message, values in REFUSED.items():
        try:
            render(values)
            found.append(f"the chart accepts {values}")
        except RuntimeError as error:
            found += [] if message in str(error) else [f"{values}: {error}"]
    number = 0
    for number, values in enumerate(combinations(), 1):
        text = render(values)
        found += [f"{values}: {problem}" for problem in problems(documents(text))]
        if arguments.schemas:
            location = f"{arguments.schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
            words = ["kubeconform", "-strict", "-schema-location", location, "-skip"]
            found += tool([*words, "ServiceMonitor,PrometheusRule,Certificate"], text, str(values))
        if number % 100 == 0:
            print(f"{number} combinations, {len(found)} problems", flush=True)
    text = written("bookies.yaml")
    if arguments.score:
        # Pods get another uid range by value; a limit of the processor is the operator's choice.
        found += tool(["kube-score", "score", "-"], text, "bookies.yaml")
    if arguments.server:
        for name in FILES:
            words = ["kubectl", "apply", "--server-side", "--dry-run=server", "-f", "-"]
            found += tool(words, written(name), name)
    print("\n".join(found) or f"{number} combinations, no problem")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
