"""What may be started over HTTP, and the command lines that come of it: a request names no place of its own."""

from __future__ import annotations

from typing import Any

import pytest
from tests.live.command import bk

from bookies.admin.shared.nouns import parser_of
from bookies.protocol.rights import Role
from bookies.web import spark_catalog
from bookies.web.messages import Problem
from bookies.web.spark_catalog import ALLOWED, DRY_RUN, PLAN, RUN, Asked, Places

PLACES = Places("/jobs", ("s3://safe/bookies",), 2)
OPTIONS: dict[str, dict[str, Any]] = {  # one value for each option of a job
    "scrub": {"level": 1, "ledgers": "1,2", "fraction": "1/30", "seed": 7},
    "usage": {"top": "5", "hot_hours": 1.5, "tables": "monday"},
    "reconcile": {"older_than": 1, "probe": 10},
    "whatif": {"dead": "b1", "domains": "/r1", "fault_domains": "b1=/r1", "fill": 0.5},
    "verify": {"backup": "s3://safe/bookies", "backup_run": "monday", "in_cluster": True},
    "repair": {"plan": "monday"},
    "compact": {"log": "-orders", "tombstone_age": "1d"},
    "offload": {
        "to": "s3://safe/bookies",
        "ledgers": "1",
        "log": "orders",
        "older_than": "7d",
        "larger_than": 1,
        "delete_after": "1d",
        "sweep_after": "7d",
    },
    "restore": {"ledgers": "1", "log": "orders"},
    "backup": {"to": "s3://safe/bookies", "open": "true", "keep": 3, "sweep_after": "7d"},
}


@pytest.fixture(scope="module")
def jobs() -> Any:
    return bk("spark", "jobs", "--json").json()["jobs"]


def parse(jobs: Any, job: object, options: object, **rest: object) -> Asked:
    return spark_catalog.parse({"job": job, "options": options, **rest}, jobs, PLACES, "20260301-101500")


@pytest.mark.parametrize("job", ALLOWED)
def test_every_allowed_option_becomes_an_argument_that_the_job_accepts(job: str, jobs: Any) -> None:
    assert set(OPTIONS[job]) == set(ALLOWED[job].options)
    asked = parse(jobs, job, OPTIONS[job], rate=2.5, run="may")
    for mode, run_id in ((PLAN, "may"), (DRY_RUN, "may-dry-run"), (RUN, "may")):
        words = spark_catalog.command(asked, mode, jobs, PLACES)
        given = parser_of("spark").parse_args(words[words.index("spark") + 1 :])
        assert (given.job, given.output, given.run_id, given.cores, given.rate) == (job, "/jobs", run_id, 2, 2.5)
        assert (given.plan_only, given.dry_run) == (mode == PLAN, mode == DRY_RUN)
        assert given.end_with_stdin
        assert [path.rpartition(".")[2] for path in given.report] == ["json", "html"]
        assert given.metadata is None
        for name, value in OPTIONS[job].items():
            kind = ALLOWED[job].kinds.get(name)
            expected = f"/jobs/{value}/{kind}" if kind in ("plan", "tables") else value
            found = getattr(given, name)
            assert found == (
                value == "true" if isinstance(found, bool) and isinstance(value, str) else type(found)(expected)
            )


def test_who_may_start_what(jobs: Any) -> None:
    rows = {row["job"]: row for row in spark_catalog.described(jobs, PLACES)}
    assert {name for name, row in rows.items() if row["role"] == "operator"} == {
        *("scrub", "usage", "reconcile", "whatif", "verify")
    }
    assert all((row["role"] == Role.ADMINISTRATOR.word) == bool(row["effect"]) for row in rows.values())
    to = next(option for option in rows["backup"]["options"] if option["name"] == "to")
    assert (to["values"], to["kind"]) == (["s3://safe/bookies"], "target")
    assert not {"import", "export", "migrate", "restore-cluster"} & set(rows)


@pytest.mark.parametrize(
    ("job", "options", "rest", "message"),
    [
        ("import", {}, {}, "job=import: this job cannot be started over HTTP"),
        (["scrub"], {}, {}, "cannot be started"),
        (None, {}, {}, "job=None"),
        ("scrub", [], {}, "options has to be one JSON object"),
        ("scrub", {"output": "/etc"}, {}, "output: not an option of scrub over HTTP; it accepts level"),
        ("scrub", {"config": "/etc/shadow"}, {}, "config: not an option"),
        ("scrub", {"metadata": "zk://elsewhere/x"}, {}, "metadata: not an option"),
        ("scrub", {"level": 9}, {}, "level=9: must be one of 0, 1, 2, 3, 4"),
        ("scrub", {"level": "x"}, {}, "level=x: a number is needed"),
        ("scrub", {"level": {"a": 1}}, {}, "a number, true, false or a text"),
        ("scrub", {"ledgers": "1\n2"}, {}, "a number, true, false or a text"),
        ("scrub", {"ledgers": "1," * 2000}, {}, "at most 2000 characters"),
        ("verify", {"backup": "s3://safe/bookies", "in_cluster": "maybe"}, {}, "true or false"),
        ("verify", {"backup": "s3://safe/bookies", "backup_run": "../x"}, {}, "name of an earlier run"),
        ("verify", {}, {}, "verify needs the option backup"),
        ("repair", {"plan": "/tmp/plan"}, {}, "plan=/tmp/plan: the name of an earlier run is needed"),
        ("repair", {"plan": ".."}, {}, "name of an earlier run"),
        ("backup", {"to": "file:///etc"}, {}, "http_jobs_targets does not list it; it lists s3://safe/bookies"),
        ("backup", {"to": "s3://safe/bookies?endpoint_override=10.0.0.1"}, {}, "does not list it"),
        ("scrub", {}, {"run": "../../etc"}, "run=../../etc: a name is needed"),
        ("scrub", {}, {"run": ["x"]}, "a name is needed"),
        ("scrub", {}, {"rate": "fast"}, "rate=fast: a number of megabytes"),
        ("scrub", {}, {"rate": -1}, "rate=-1"),
        ("scrub", {}, {"rate": "nan"}, "rate=nan"),
        ("scrub", {}, {"cores": 64}, "cores: not a part of the body"),
    ],
)
def test_refusals(jobs: Any, job: object, options: object, rest: dict[str, object], message: str) -> None:
    with pytest.raises(Problem) as found:
        parse(jobs, job, options, **rest)
    assert message in str(found.value)
    assert found.value.status in (400, 422)


def test_options_without_a_value_are_left_out_and_runs_are_named(jobs: Any) -> None:
    asked = parse(jobs, "whatif", {"dead": "", "fill": None}, rate="", run="")
    assert (asked.options, asked.rate, asked.run_id) == ({}, None, "20260301-101500-whatif")
    words = spark_catalog.command(parse(jobs, "compact", {"log": "--conf=x"}), RUN, jobs, PLACES)
    assert words[-2:] == ["--", "--conf=x"]
    assert not [word for word in words if word.startswith("--rate")]
