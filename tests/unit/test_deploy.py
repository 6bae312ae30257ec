"""Manifests, compose file and image name commands, settings and probes that exist."""

from __future__ import annotations

import copy
import pathlib
import re
from typing import Any

import pytest
import yaml
from tests.deploy import agreement
from tests.deploy.agreement import COMPOSE, KUBERNETES, ROOT, VARIABLES, command_problem, compose_problems, documents

MANIFESTS = sorted(KUBERNETES.glob("*.yaml"))


def read(name: str) -> list[dict[str, Any]]:
    return documents((KUBERNETES / name).read_text())


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_agree_with_the_product(path: pathlib.Path) -> None:
    objects = documents(path.read_text())
    assert objects
    assert not list(agreement.problems(objects))


def test_the_compose_file_agrees_with_the_product() -> None:
    file = yaml.safe_load(COMPOSE.read_text())
    assert len(file["services"]) == 7
    assert not list(compose_problems(file))


def test_probes_are_endpoints() -> None:
    page = (ROOT / "docs" / "reference" / "http.md").read_text()
    assert all(f"GET `{path}`" in page for path in agreement.PROBES.values())


@pytest.mark.parametrize("path", ["deploy/image/Containerfile", "release/image.py"])
def test_images_make_no_bookie_by_themselves(path: str) -> None:
    text = (ROOT / path).read_text()
    assert "BK_NEW_BOOKIES=" in text
    assert set(re.findall(r"\bBK_[A-Z_]+\b", text)) <= VARIABLES
    assert not re.search(r"^VOLUME", text, re.MULTILINE)


def test_new_bookies_and_clusters_need_a_wish() -> None:
    [new] = [each for each in read("bookies.yaml") if each["metadata"]["name"] == "log-new"]
    assert new["data"] == {"new_bookies": ""}
    [new] = [each for each in read("initialize.yaml") if each["metadata"]["name"] == "log-new"]
    assert new["data"] == {"new_bookies": "log-bookie-0,log-bookie-1,log-bookie-2"}


def changed(path: str, value: Any) -> list[str]:
    """Problems of the manifests with another value in the bookies' container or object."""
    objects = copy.deepcopy(read("bookies.yaml"))
    [owner] = [each for each in objects if each["kind"] == "StatefulSet"]
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split("/")]
    place: Any = owner["spec"]
    for part in parents:
        place = place[part]
    place[last] = value
    return list(agreement.problems(objects))


CONTAINER = "template/spec/containers/0"


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (f"{CONTAINER}/args", ["bookie", "walk"], "StatefulSet log-bookie: bk bookie walk: "),
        (f"{CONTAINER}/args", ["book", "run"], "StatefulSet log-bookie: bk book: no such command"),
        (f"{CONTAINER}/env/0/name", "BK_BOOKIE_NAME", "StatefulSet log-bookie: no setting BK_BOOKIE_NAME"),
        (f"{CONTAINER}/livenessProbe/httpGet/path", "/healthz", "livenessProbe asks /healthz, not /livez"),
        (f"{CONTAINER}/readinessProbe/httpGet/port", "https", "readinessProbe has no port"),
        (f"{CONTAINER}/securityContext/readOnlyRootFilesystem", False, "may write to its root"),
        (f"{CONTAINER}/resources", {"limits": {}}, "has no limits"),
        (f"{CONTAINER}/volumeMounts/0/name", "x", "no volume x"),
        ("template/spec/volumes/0", {"name": "config", "configMap": {"name": "x"}}, "no ConfigMap x"),
        ("serviceName", "x", "no Service x"),
        ("selector/matchLabels", {"a": "b"}, "its selector does not select its pods"),
    ],
)
def test_what_the_check_finds(path: str, value: Any, problem: str) -> None:
    [found] = changed(path, value)
    assert problem in found


def test_what_the_check_finds_in_a_compose_file_and_in_settings() -> None:
    file = yaml.safe_load(COMPOSE.read_text())
    bookie = file["services"]["bookie1"]
    bookie |= {"command": ["bookie"], "read_only": False, "volumes": ["data:/d"], "environment": {"BK_ID": "x"}}
    found = list(compose_problems(file))
    assert [text.partition(" ")[0] for text in found] == ["bookie1:"] * 4
    settings = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"bk.toml": "[bookie]\nprot = 1\n"}}
    [found_setting] = agreement.problems([settings])
    assert "c/bk.toml:2: " in found_setting
    assert "port" in found_setting
    assert not command_problem(["bookie", "drain", "log-bookie", "--beyond=3", "--remove"])


def test_what_the_check_finds_in_jobs() -> None:
    objects = read("initialize.yaml")
    [job] = [each for each in objects if each["kind"] == "Job"]
    job["metadata"]["annotations"] = {"helm.sh/hook": "pre-install,pre-upgrade"}
    job["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    assert list(agreement.problems(objects)) == [
        "Job log-check: no hook pre-rollback",
        "Job log-check: its logs are deleted when it fails",
    ]


def test_initialization_leaves_the_settings_of_the_pods_as_they_are() -> None:
    names = {(each["kind"], each["metadata"]["name"]) for each in read("initialize.yaml")}
    others = {(each["kind"], each["metadata"]["name"]) for each in read("bookies.yaml")}
    assert names & others == {("ConfigMap", "log-new")}
