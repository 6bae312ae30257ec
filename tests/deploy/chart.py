"""Render every combination of the chart's switches and check it: `make chart`. `--write` renders deploy/kubernetes.

Needs `helm`. `--openapi FILE`: kubeconform with the schemas of Kubernetes' `swagger.json`, which is in
its Go module. `--score`: kube-score. `--server`: the API server of
kubectl's context accepts every object (`--dry-run=server`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from tests.deploy.agreement import KUBERNETES, ROOT, documents, problems

CHART = ROOT / "deploy" / "helm" / "bookies"
RELEASE = ("log", "--namespace", "bookies", "--kube-version", "1.32.0")
# What every installation names. The committed manifests are for a trial to edit: without TLS.
USERS = {"users.secret": "log-users"}
PLAIN = {"metadata.uri": "zk://zookeeper:2181/ledgers", "insecure": True}
SWITCHES: tuple[tuple[dict[str, Any], ...], ...] = (
    (
        {"insecure": True},
        {"insecure": True} | USERS,
        {"tls.secret": "log-tls"} | USERS,
        {"tls.issuer": {"name": "ca"}} | USERS,
    ),
    ({}, {"initialize": True}),
    (
        {},
        {"bookie.spread": "required", "bookie.updateStrategy": "RollingUpdate"},
        {"bookie.zones": [{"name": "a", "replicas": 2}, {"name": "b", "replicas": 1}], "bookie.region": "r"},
    ),
    ({"recovery.replicas": 0, "settings.bookie": {"auto_recovery": True}}, {"recovery.replicas": 2}),
    ({"gateway.replicas": 0}, {"gateway.replicas": 2, "gateway.names": ["bk.example.org"]}),
    ({"drain.enabled": False}, {"drain.rate": 33554432}),
    # Switches of which each adds a part of its own: none, the defaults, all.
    (
        {"networkPolicy.enabled": False},
        {},
        {
            "bookie.ledgers": [{"size": "1Gi"}, {"size": "2Gi", "storageClass": "fast"}],
            "bookie.allowStorageExpansion": True,
            "bookie.priorityClassName": "high",
            "bookie.nodeSelector": {"disk": "nvme"},
            "bookie.tolerations": [{"key": "bookies", "operator": "Exists"}],
            "networkPolicy.egress": [{"ports": [{"port": 2181}]}],
            "networkPolicy.clients": [{"namespaceSelector": {}}],
            "networkPolicy.monitoring": [{"namespaceSelector": {}}],
            "monitoring.serviceMonitor": True,
            "monitoring.rules": True,
            "monitoring.dashboards": True,
            "monitoring.labels": {"release": "p"},
            "monitoring.tokenSecret": "log-token",
            "metadata.secret": "log-store",
            "podLabels": {"a": "b"},
            "podAnnotations": {"c": "d"},
            "image.pullSecrets": [{"name": "r"}],
        },
    ),
)
FILES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "bookies.yaml": (PLAIN, ("--no-hooks",)),
    "initialize.yaml": (
        PLAIN | {"initialize": True},
        ("--show-only", "templates/initialize.yaml", "--show-only", "templates/new.yaml"),
    ),
}
KINDS = (
    *("ConfigMap", "Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"),
    "StatefulSet",
)
NOT_OF_KUBERNETES = ("Certificate", "PrometheusRule", "ServiceMonitor")  # no schema is at hand
REFUSED = {
    "metadata.uri is empty": {"insecure": True},
    "no TLS": {"metadata.uri": "x"},
    "no users": {"metadata.uri": "x", "tls.secret": "t"},
    "a gateway needs users": PLAIN | {"gateway.replicas": 1},
    "name one of them": PLAIN | {"tls.secret": "t", "tls.issuer": {"name": "i"}},
    "RollingUpdate restarts": PLAIN
    | {"bookie.zones": [{"name": "a", "replicas": 2}], "bookie.updateStrategy": "RollingUpdate"},
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


def write_schemas(openapi: str, directory: str) -> None:
    """Write a schema for each kind of object, in which unknown fields are mistakes."""
    definitions = json.loads(pathlib.Path(openapi).read_text())["definitions"]
    for name, schema in definitions.items():
        if schema.get("format") == "int-or-string" or name.endswith("resource.Quantity"):
            definitions[name] = {"type": ["string", "number"]}
        elif "properties" in schema:
            schema.setdefault("additionalProperties", False)
    for schema in [*definitions.values()]:
        for group in schema.get("x-kubernetes-group-version-kind", ()):
            if group["version"] == "v1" and group["kind"] in KINDS:
                text = json.dumps(schema | {"definitions": definitions})
                pathlib.Path(directory, f"{group['kind'].lower()}.json").write_text(text)


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
    parser.add_argument("--openapi", help="swagger.json of Kubernetes, for kubeconform")
    parser.add_argument("--score", action="store_true", help="ask kube-score")
    parser.add_argument("--server", action="store_true", help="ask the API server of kubectl's context")
    arguments = parser.parse_args()
    if arguments.write:
        for name in FILES:
            (KUBERNETES / name).write_text(written(name))
        return 0
    with tempfile.TemporaryDirectory() as schemas:
        if arguments.openapi:
            write_schemas(arguments.openapi, schemas)
        found = list(findings(arguments, schemas if arguments.openapi else ""))
    print("\n".join(found) or "no problem")
    return int(bool(found))


def findings(arguments: argparse.Namespace, schemas: str) -> Iterator[str]:
    """Yield what is wrong. `schemas`: directory with schemas for kubeconform, if it is asked."""
    for name in FILES:
        path, text = KUBERNETES / name, written(name)
        if path.read_text() != text:
            yield f"{path} is not what the chart renders: make chart ARGS=--write"
        yield from (
            tool(["kubectl", "apply", "--server-side", "--dry-run=server", "-f", "-"], text, name)
            if (arguments.server)
            else ()
        )
    if arguments.score:
        # Nothing is fetched at a start if the node has the image.
        words = ["kube-score", "score", "--ignore-test", "container-image-pull-policy", "-"]
        yield from tool(words, written("bookies.yaml"), "bookies.yaml")
    for message, values in REFUSED.items():
        try:
            render(values)
            yield f"the chart accepts {values}"
        except RuntimeError as error:
            yield from [] if message in str(error) else [f"{values}: {error}"]
    number = 0
    for number, values in enumerate(combinations(), 1):
        text = render(values)
        yield from (f"{values}: {problem}" for problem in problems(documents(text)))
        if schemas:
            location = f"{schemas}/{{{{.ResourceKind}}}}.json"
            words = ["kubeconform", "-strict", "-schema-location", location, "-skip", ",".join(NOT_OF_KUBERNETES)]
            yield from tool(words, text, str(values))
        if number % 50 == 0:
            print(f"{number} combinations", flush=True)
    print(f"{number} combinations rendered")


if __name__ == "__main__":
    sys.exit(main())
