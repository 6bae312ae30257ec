"""Spark jobs that users start over HTTP: `bk spark JOB` as a program beside this process.

A job begins with its forecast, which says what it will read and how long that takes, and changes nothing. A second
request carries out what was forecast, with the same options. The program gets no shell, and only what
`spark_catalog.py` allows. It ends with this process; the same run can be continued here or by `bk spark`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import deque
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from bookies.encoding.documents import parse_json
from bookies.errors import ConfigError
from bookies.protocol.rights import Role
from bookies.runtime.ports import Program, Runtime
from bookies.web import spark_catalog
from bookies.web.apache_bookie import API
from bookies.web.jobs import Jobs
from bookies.web.messages import JSON, Problem, Request, Response, json_response
from bookies.web.routes import Route
from bookies.web.site import Process
from bookies.web.spark_catalog import ALLOWED, DRY_RUN, PLAN, RUN, Asked, Places

END_S = 60.0  # for a job to end after SIGINT
FORECAST_AGE_MS = 3_600_000  # after which a forecast has to be repeated
AGAIN_S = 60.0  # until it is checked again whether Spark can run here
LINES_MAX = 20  # of a program's messages that are kept
REPORT_SIZE_MAX = 8 << 20
HTML = "text/html; charset=utf-8"
# The report has a style of its own, and nothing else.
REPORT_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
INSTALL = "pip install 'bookies[spark]' for the server; it is checked again after a minute"
SETTING = "set http_jobs_directory to a directory of this server for their results, and restart it"


class Started(Struct):
    """A job that was started. `lines`: the last messages of the program. `report`: it has written one."""

    asked: Asked
    mode: str
    lines: deque[str]
    report: bool = False


class SparkJobs:
    """The endpoints of Spark jobs in one process. Raises `ConfigError` for a target with a password."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._described: dict[str, Any] | None = None  # by `bk spark jobs`
        self._failed: tuple[float, Problem] | None = None  # when that failed, and how
        self._one = asyncio.Lock()  # program is described or started at a time
        self._started: dict[str, Started] = {}  # by job id
        for target in process.config.http_jobs_targets if process.config is not None else ():
            if "@" in target.partition("://")[2].partition("/")[0]:
                raise ConfigError("http_jobs_targets has a password, which users would see: use the environment for it")
        job = f"{API}/jobs/{{job}}"
        self.routes = (
            Route(f"{API}/spark-jobs", "Spark jobs that may be started here, with their options", self._list),
            Route(
                f"{API}/jobs",
                "forecast a Spark job: what it reads and how long it takes; changes nothing",
                self._forecast,
                method="POST",
                role=Role.OPERATOR,
                body="job=NAME, options={}, rate=MB, run=NAME",
            ),
            Route(
                f"{job}/run",
                "carry out what the job has forecast; an administrator, if that changes something",
                self._run,
                method="POST",
                role=Role.OPERATOR,
                body="mode=run or dry-run",
            ),
            Route(f"{job}/report", "report of a Spark job", self._report, "form=json or html"),
        )

    # -- what there is ---------------------------------------------------------------------------------------------
    async def _list(self, request: Request) -> Response:
        places, _ = self._places()
        jobs = await self._jobs()
        return json_response(spark_catalog.described(jobs, places))

    def _places(self) -> tuple[Places, Jobs]:
        """Return where jobs may write, and the jobs of the process. Raises `Problem` if this server starts none."""
        config, jobs = self._process.config, self._process.jobs
        if config is None or jobs is None or not config.http_jobs_directory:
            raise Problem(409, "this server starts no Spark jobs", SETTING)
        directory = os.path.abspath(config.http_jobs_directory)
        return Places(directory, config.http_jobs_targets, config.http_jobs_cores), jobs

    async def _jobs(self) -> dict[str, Any]:
        """Return the jobs and their options. A program describes them: this process does not load PyArrow.

        Raises `Problem` if Spark cannot run here.
        """
        runtime = self._process.client.runtime
        async with self._one:
            if self._described is None:
                now = runtime.clock.monotonic()
                if self._failed is not None and now - self._failed[0] < AGAIN_S:
                    raise self._failed[1]
                if runtime.output_of is None:
                    raise Problem(503, "this process starts no programs")
                command = [sys.executable, "-P", "-m", "bookies.admin.cli", "spark", "jobs", "--json"]
                try:
                    self._described = json.loads(await runtime.output_of(command))["jobs"]
                except (OSError, ValueError) as error:
                    problem = Problem(503, f"Spark cannot run on this server: {error}", INSTALL)
                    self._failed = now, problem
                    raise problem from error
            return self._described

    # -- starting --------------------------------------------------------------------------------------------------
    async def _forecast(self, request: Request) -> Response:
        places, _ = self._places()
        jobs = await self._jobs()
        runtime = self._process.client.runtime
        asked = spark_catalog.parse(request.document(), jobs, places, _moment(runtime))
        return await self._start(request, asked, PLAN)

    async def _run(self, request: Request) -> Response:
        _, jobs = self._places()
        job_id = request.values["job"]
        row, forecast = jobs.row(job_id), self._started.get(job_id)
        if forecast is None:
            raise Problem(409, f"job {job_id} has forecast nothing: it is no Spark job")
        allowed = ALLOWED[forecast.asked.job]
        mode = request.document().get("mode", DRY_RUN if allowed.effect else RUN)
        if mode not in (DRY_RUN, RUN):
            raise Problem(422, f"mode={mode}: must be {RUN} or {DRY_RUN}")
        if row["state"] != "done" or forecast.mode == RUN:
            raise Problem(409, f"job {job_id} is no forecast that was made: it is {row['state']}", f"POST {API}/jobs")
        runtime = self._process.client.runtime
        if runtime.clock.wall_ms() - row["ended_ms"] > FORECAST_AGE_MS:
            raise Problem(409, f"the forecast of job {job_id} is older than an hour", f"POST {API}/jobs")
        if mode == RUN and request.user is not None and request.user.role < allowed.role:
            word = allowed.role.word
            raise Problem(403, f"{forecast.asked.job} changes something, which needs the role {word}", "mode=dry-run")
        return await self._start(request, forecast.asked, mode)

    async def _start(self, request: Request, asked: Asked, mode: str) -> Response:
        """Start a job and return its facts. Raises `Problem`, `BookKeeperError`."""
        _, jobs = self._places()
        uri = (await self._process.client.connected()).driver.uri
        described = await self._jobs()
        async with self._one:
            jobs.check()
            for job_id in self._started:
                if jobs.is_running(job_id):
                    raise Problem(429, f"job {job_id} runs, and this server runs one Spark job at a time")
            job_id = await self._begin(request, Started(asked, mode, deque(maxlen=LINES_MAX)), described, uri)
        row = jobs.row(job_id)
        headers = {"X-Bk-Job": job_id, "Location": f"{API}/jobs/{job_id}"}
        response = json_response(row, headers=headers)
        return Response(200, response.body, response.content_type, headers, after={"job": job_id, "run": row["run"]})

    async def _begin(self, request: Request, started: Started, described: dict[str, Any], uri: str) -> str:
        """Start the program, and return the id of its job. Raises `Problem`."""
        runtime, (places, jobs), asked = self._process.client.runtime, self._places(), started.asked
        if runtime.start_program is None:
            raise Problem(503, "this process starts no programs")
        run_id = spark_catalog.run_of(asked, started.mode)
        try:
            runtime.disk.make_directories(f"{places.directory}/{run_id}")
            for form in ("json", "html"):  # of an earlier attempt
                if runtime.disk.exists(path := spark_catalog.report_of(asked, started.mode, places, form)):
                    runtime.disk.unlink(path)
            command = spark_catalog.command(asked, started.mode, described, places)
            # The URI is in the environment, because other users of the machine see the arguments of programs.
            program = await runtime.start_program(command, {"BK_METADATA": uri, "BK_SERVER": "", "PYTHONSAFEPATH": "1"})
        except OSError as error:
            raise Problem(503, f"the job cannot be started: {error}", "check http_jobs_directory") from error
        facts: dict[str, Any] = {
            "spark": asked.job,
            "mode": started.mode,
            "run": run_id,
            "options": asked.options,
            "rate": asked.rate,
            "effect": ALLOWED[asked.job].effect,
            "progress": "",
            "messages": [],
        }
        by = request.user.name if request.user is not None else "-"
        work = self._follow(program, started, facts)
        name = f"spark {asked.job}, {'forecast' if started.mode == PLAN else started.mode}"
        job_id = jobs.start(name, by, work, Role.OPERATOR, facts)
        self._started = {known: kept for known, kept in self._started.items() if known in jobs.rows}
        self._started[job_id] = started
        return job_id

    async def _follow(self, program: Program, started: Started, facts: dict[str, Any]) -> object:
        """Read what the program reports until it has ended, and return its result. Raises OSError if it has failed."""

        async def ended() -> int:
            async for line in program.lines():
                if line.strip():
                    started.lines.append(line)
                    facts["messages"] = list(started.lines)
                if line.strip().startswith(f"{started.asked.job}"):
                    facts["progress"] = line.strip()
            return await program.wait()

        try:
            status = await ended()
        except asyncio.CancelledError:
            program.interrupt()
            try:
                async with asyncio.timeout(END_S):
                    await ended()
            except (TimeoutError, asyncio.CancelledError):  # A second cancellation does not wait.
                program.kill()
                await program.wait()
            raise
        runtime = self._process.client.runtime
        path = spark_catalog.report_of(started.asked, started.mode, self._places()[0], "json")
        if status not in (0, 1) or not runtime.disk.exists(path):
            raise OSError(_failure(started, status))
        report = parse_json(_read(runtime, path))
        assert isinstance(report, dict)
        started.report = True
        return {"status": status, **{name: report[name] for name in ("lead", "is_good", "counters")}}

    # -- results ---------------------------------------------------------------------------------------------------
    async def _report(self, request: Request) -> Response:
        places, jobs = self._places()
        job_id, form = request.values["job"], request.query.get("form", "json")
        jobs.row(job_id)
        if form not in ("json", "html"):
            raise Problem(400, f"form={form}: must be json or html")
        started = self._started.get(job_id)
        if started is None or not started.report:
            raise Problem(404, f"job {job_id} has no report: it still runs, has failed, or is no Spark job")
        runtime = self._process.client.runtime
        try:
            data = _read(runtime, spark_catalog.report_of(started.asked, started.mode, places, form))
        except FileNotFoundError:
            raise Problem(404, f"the report of job {job_id} was deleted from {places.directory}") from None
        return Response(200, data, JSON) if form == "json" else Response(200, data, HTML, REPORT_HEADERS)


def _moment(runtime: Runtime) -> str:
    """Return the present time, as the names of runs begin with it."""
    return f"{datetime.fromtimestamp(runtime.clock.wall_ms() / 1000, UTC):%Y%m%d-%H%M%S}"


def _failure(started: Started, status: int) -> str:
    """Return why a program has failed: its sentence, or its last message."""
    sentences = [line for line in started.lines if line.startswith("bk spark: ")]
    last = (sentences or list(started.lines) or ["without a message"])[-1]
    again = f"; run {started.asked.run_id} can be continued" if started.mode == RUN else ""
    return f"bk spark {started.asked.job} ended with status {status}: {last.removeprefix('bk spark: ')}{again}"


def _read(runtime: Runtime, path: str) -> bytes:
    """Return a report. Raises OSError."""
    file = runtime.disk.open(path, "r")
    try:
        if file.size() > REPORT_SIZE_MAX:
            raise OSError(f"{path} has more than {REPORT_SIZE_MAX:,} bytes; read it on the server")
        return file.pread(REPORT_SIZE_MAX, 0)
    finally:
        file.close()
