"""What manifests and the product have to agree on: commands, settings, paths of probes, ports."""

from __future__ import annotations

import contextlib
import io
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from bookies.admin.cli import parser_of
from bookies.settings import TABLES, parse_settings, settings_in, variable_of

ROOT = pathlib.Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"
VARIABLES = {variable_of(name) for table in TABLES for name in settings_in(table)} | {"BK_CONFIG"}
PROBES = {"startupProbe": "/startupz", "livenessProbe": "/livez", "readinessProbe": "/readyz"}


def documents(text: str) -> list[dict[str, Any]]:
    """Return the objects of a file."""
    return [document for document in yaml.safe_load_all(text) if document]


def command_problem(words: Iterable[str]) -> str:
    """Return what the parser of `bk` objects to; empty: it accepts the command."""
    noun, *rest = words
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            parser_of(noun).parse_args(rest)
        except KeyError:
            return f"bk {noun}: no such command"
        except SystemExit:
            return f"bk {noun} {' '.join(rest)}: {errors.getvalue().strip().splitlines()[-1]}"
    return ""


def pods(objects: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the name of each object with pods, the object, and the pods' specification."""
    for each in objects:
        if "template" in each.get("spec", {}):
            yield f"{each['kind']} {each['metadata']['name']}", each, each["spec"]["template"]["spec"]


def container_problems(name: str, container: Mapping[str, Any]) -> Iterator[str]:
    if problem := command_problem(container["args"]):
        yield f"{name}: {problem}"
    for variable in container.get("env", ()):
        if variable["name"].startswith("BK_") and variable["name"] not in VARIABLES:
            yield f"{name}: no setting {variable['name']}"
    ports = {port["name"] for port in container.get("ports", ())}
    for probe, path in PROBES.items():
        if probe in container and container[probe]["httpGet"]["path"] != path:
            yield f"{name}: {probe} asks {container[probe]['httpGet']['path']}, not {path}"
        if probe in container and container[probe]["httpGet"]["port"] not in ports:
            yield f"{name}: {probe} has no port"
    security = container["securityContext"]
    if security["allowPrivilegeEscalation"] or not security["readOnlyRootFilesystem"]:
        yield f"{name}: may write to its root, or get more rights"
    if not {"requests", "limits"} <= container["resources"].keys():
        yield f"{name}: has no limits"


def problems(objects: list[dict[str, Any]]) -> Iterator[str]:
    """Yield where objects of Kubernetes contradict the product or each other."""
    services = {each["metadata"]["name"]: each["spec"]["selector"] for each in objects if each["kind"] == "Service"}
    configurations = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    for map_name, data in configurations.items():
        if "bk.toml" in data:
            yield from map(str, parse_settings(data["bk.toml"].encode(), f"{map_name}/bk.toml").problems)
    for each in objects:
        hooks = set(each["metadata"].get("annotations", {}).get("helm.sh/hook", "").split(","))
        if missing := {hook.replace("upgrade", "rollback") for hook in hooks} - hooks:
            yield f"{each['kind']} {each['metadata']['name']}: no hook {', '.join(missing)}"
    for name, owner, pod in pods(objects):
        if owner["kind"] == "Job" and pod["restartPolicy"] != "Never":
            yield f"{name}: its logs are deleted when it fails"
        volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
        claims = {claim["metadata"]["name"] for claim in owner["spec"].get("volumeClaimTemplates", ())}
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            yield from container_problems(name, container)
            mounts = {mount["name"] for mount in container.get("volumeMounts", ())}
            if unknown := mounts - volumes.keys() - claims:
                yield f"{name}: no volume {', '.join(sorted(unknown))}"
        for volume in volumes.values():
            if "configMap" in volume and volume["configMap"]["name"] not in configurations:
                yield f"{name}: no ConfigMap {volume['configMap']['name']}"
        selector = owner["spec"].get("selector", {}).get("matchLabels", {})
        labels = owner["spec"]["template"]["metadata"]["labels"]
        if not selector.items() <= labels.items():
            yield f"{name}: its selector does not select its pods"
        service = owner["spec"].get("serviceName")
        if service and not services.get(service, {"": ""}).items() <= labels.items():
            yield f"{name}: no Service {service} with its pods"


def compose_problems(file: Mapping[str, Any]) -> Iterator[str]:
    """Yield where a compose file contradicts the product."""
    for name, service in file["services"].items():
        if name == "zookeeper":
            continue
        if problem := command_problem(service["command"]):
            yield f"{name}: {problem}"
        yield from (f"{name}: no setting {key}" for key in service["environment"].keys() - VARIABLES)
        if not service["read_only"] or service["cap_drop"] != ["ALL"]:
            yield f"{name}: may write to its root, or has capabilities"
        places = [volume.partition(":")[::2] for volume in service.get("volumes", ())]
        for volume, place in places:
            if volume not in file["volumes"] or not place.startswith("/data"):
                yield f"{name}: {volume} is no volume of the file, or not at /data, whose owner is right"
