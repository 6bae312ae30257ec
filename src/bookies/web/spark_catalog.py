"""Which Spark jobs may be started over HTTP, by whom, with which options; and their command lines.

`bk spark jobs --json` describes all jobs and options; `ALLOWED` names those that a server passes on. The rest could
make the server read or write any file or host that it reaches: `import`, `export`, `migrate`, `restore-cluster`,
`--metadata`, `--config`, `--output`, `--report`. A place is therefore never text of a request: a directory is the
server's, an earlier run is a name, and a target is one that a setting lists.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from bookies.protocol.rights import Role
from bookies.web.messages import Problem

PLAN, DRY_RUN, RUN = "plan", "dry-run", "run"
TEXT_MAX = 2000  # characters of an option
# Kinds of options that name places: one of http_jobs_targets, a run of a backup; another kind: directory of a run here.
TARGET, BACKUP_RUN = "target", "backup-run"
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f]*")
_SUFFIX = {PLAN: "", DRY_RUN: "-dry-run", RUN: ""}  # other modes than that of the run need an id of their own


class Allowed(Struct, frozen=True):
    """A job that may be started. `role`: of who starts it for more than a forecast or a dry run.

    `options`: those that a request may set. `kinds`: of those that name places. `effect`: what it changes, or empty.
    """

    role: Role
    options: tuple[str, ...]
    kinds: Mapping[str, str] = field(default_factory=dict)
    effect: str = ""


def _reads(options: str, **kinds: str) -> Allowed:
    return Allowed(Role.OPERATOR, tuple(options.split()), kinds)


def _changes(effect: str, options: str, **kinds: str) -> Allowed:
    return Allowed(Role.ADMINISTRATOR, tuple(options.split()), kinds, effect)


ALLOWED: Mapping[str, Allowed] = {
    "scrub": _reads("level ledgers fraction seed"),
    "usage": _reads("top hot_hours tables", tables="tables"),
    "reconcile": _reads("older_than probe"),
    "whatif": _reads("dead domains fault_domains fill"),
    "verify": _reads("backup backup_run in_cluster", backup=TARGET, backup_run=BACKUP_RUN),
    "repair": _changes("It writes bad entries again, and replaces lost bookies in records.", "plan", plan="plan"),
    "compact": _changes("It deletes all but the last record of each key of the log, permanently.", "log tombstone_age"),
    "offload": _changes(
        "It copies ledgers to the target. With `delete_after` bookies delete offloaded ledgers; the copies in the "
        "target are then the only ones.",
        "to ledgers log older_than larger_than delete_after sweep_after",
        to=TARGET,
    ),
    "restore": _changes("It writes offloaded ledgers to bookies again.", "ledgers log"),
    "backup": _changes(
        "It copies ledgers to the target. With `keep` it deletes older runs of the backup.",
        "to open keep sweep_after",
        to=TARGET,
    ),
}


class Asked(Struct, frozen=True):
    """A checked request. `options`: as given, by name; `run_id`: of the run, also of its forecast."""

    job: str
    run_id: str
    options: Mapping[str, Any]
    rate: float | None


class Places(Struct, frozen=True):
    """Where jobs may write: settings of the server. `cores`: that a job uses."""

    directory: str
    targets: Sequence[str]
    cores: int


def described(jobs: Mapping[str, Any], places: Places) -> list[dict[str, Any]]:
    """Return the jobs that may be started, with their options. `jobs`: of `bk spark jobs`."""
    return [
        {
            "job": name,
            "help": jobs[name]["help"],
            "role": allowed.role.word,
            "effect": allowed.effect,
            "options": [
                {
                    "name": option,
                    **jobs[name]["options"][option],
                    "kind": allowed.kinds.get(option, ""),
                    "values": list(places.targets) if allowed.kinds.get(option) == TARGET else None,
                }
                for option in allowed.options
            ],
        }
        for name, allowed in ALLOWED.items()
    ]


def parse(document: Mapping[str, Any], jobs: Mapping[str, Any], places: Places, new_run: str) -> Asked:
    """Check the body of a request. `new_run`: begin of the id of a run that is given none. Raises `Problem`."""
    if unknown := sorted(set(document) - {"job", "options", "rate", "run"}):
        raise Problem(400, f"{unknown[0]}: not a part of the body; there are job, options, rate, run")
    job, options = document.get("job"), document.get("options", {})
    if not isinstance(job, str) or job not in ALLOWED:
        known = ", ".join(ALLOWED)
        raise Problem(422, f"job={job}: this job cannot be started over HTTP; there are {known}", "bk spark JOB")
    if not isinstance(options, dict):
        raise Problem(400, "options has to be one JSON object")
    given = {name: value for name, value in options.items() if value is not None and value != ""}
    for name, value in given.items():
        if name not in ALLOWED[job].options:
            accepted = ", ".join(ALLOWED[job].options)
            raise Problem(422, f"{name}: not an option of {job} over HTTP; it accepts {accepted}")
        _check(name, value, jobs[job]["options"][name], ALLOWED[job].kinds.get(name, ""), places)
    for name, row in jobs[job]["options"].items():
        if row["is_positional"] and name not in given:
            raise Problem(422, f"{job} needs the option {name}: {row['help']}")
    return Asked(job, _run_id(document.get("run"), f"{new_run}-{job}"), given, _rate(document.get("rate")))


def _run_id(given: object, default: str) -> str:
    if given in (None, ""):
        return default
    if not isinstance(given, str) or not _RUN.fullmatch(given):
        raise Problem(422, f"run={given}: a name is needed, of letters, digits, '-', '.' and '_', such as nightly-7")
    return given


def _rate(given: object) -> float | None:
    if given in (None, ""):
        return None
    try:
        rate = float(str(given))
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e9:
        raise Problem(422, f"rate={given}: a number of megabytes per second above 0 is needed")
    return rate


def _check(name: str, value: object, row: Mapping[str, Any], kind: str, places: Places) -> None:
    """Refuse a value that the option does not accept. Raises `Problem`."""
    text = str(value)
    if isinstance(value, dict | list) or len(text) > TEXT_MAX or not _PRINTABLE.fullmatch(text):
        raise Problem(422, f"{name}: a number, true, false or a text of at most {TEXT_MAX} characters is needed")
    if kind == TARGET and text not in places.targets:
        listed = ", ".join(places.targets) or "none"
        raise Problem(422, f"{name}={text}: http_jobs_targets does not list it; it lists {listed}")
    if kind not in ("", TARGET) and not _RUN.fullmatch(text):
        raise Problem(422, f"{name}={text}: the name of an earlier run is needed, such as 20260301-101500-scrub")
    try:
        typed = {"int": int, "float": float}.get(row["type"], str)(text)
    except ValueError:
        raise Problem(422, f"{name}={text}: a number is needed ({row['help']})") from None
    if row["type"] == "bool" and text.lower() not in ("true", "false"):
        raise Problem(422, f"{name}={text}: true or false is needed")
    if row["choices"] is not None and typed not in row["choices"]:
        raise Problem(422, f"{name}={text}: must be one of {', '.join(map(str, row['choices']))}")


def run_of(asked: Asked, mode: str) -> str:
    """Return the id of the run in this mode."""
    return asked.run_id + _SUFFIX[mode]


def report_of(asked: Asked, mode: str, places: Places, form: str) -> str:
    """Return the file of a report. `form`: json or html."""
    name = "forecast" if mode == PLAN else "report"
    return f"{places.directory}/{run_of(asked, mode)}/{asked.job}-{name}.{form}"


def command(asked: Asked, mode: str, jobs: Mapping[str, Any], places: Places) -> list[str]:
    """Return the program that runs the job, and its arguments. It does not contain the metadata store."""
    flags = {PLAN: ["--plan-only"], DRY_RUN: ["--dry-run"], RUN: []}
    # -P: modules are not searched in the present directory.
    program = [sys.executable, "-P", "-m", "bookies.admin.cli", "spark", asked.job, "--end-with-stdin", *flags[mode]]
    program += [f"--output={places.directory}", f"--run-id={run_of(asked, mode)}", f"--cores={places.cores}"]
    program += [f"--report={report_of(asked, mode, places, form)}" for form in ("json", "html")]
    if asked.rate is not None:
        program.append(f"--rate={asked.rate}")
    rows = jobs[asked.job]["options"]
    program += [
        word for name in asked.options if not rows[name]["is_positional"] for word in _word(asked, name, rows, places)
    ]
    positional = [str(asked.options[name]) for name in rows if rows[name]["is_positional"]]
    return [*program, *(["--", *positional] if positional else [])]


def _word(asked: Asked, name: str, rows: Mapping[str, Any], places: Places) -> Iterator[str]:
    """Yield the argument of an option. Name and value are one word, so a value is never taken for an option."""
    option, value, kind = f"--{name.replace('_', '-')}", asked.options[name], ALLOWED[asked.job].kinds.get(name, "")
    if rows[name]["type"] == "bool":
        if str(value).lower() == "true":
            yield option
    elif kind not in ("", TARGET, BACKUP_RUN):
        yield f"{option}={places.directory}/{value}/{kind}"
    else:
        yield f"{option}={value}"
