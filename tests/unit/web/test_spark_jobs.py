"""Spark jobs over HTTP, with a program that does what the test lets it do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.live.command import bk
from tests.unit.bookie.conftest import World

from bookies.config import ClientConfig, SiteConfig
from bookies.errors import ConfigError
from bookies.metadata.embedded import MemoryDriver
from bookies.protocol.rights import Role, User
from bookies.runtime.ports import Runtime
from bookies.web.jobs import STOP_S, Jobs
from bookies.web.messages import Problem, Request, Response
from bookies.web.shared_client import SharedClient
from bookies.web.site import Process
from bookies.web.spark_jobs import AGAIN_S, END_S, FORECAST_AGE_MS, LINES_MAX, SparkJobs

CONFIG = SiteConfig(http_jobs_directory="/jobs", http_jobs_targets=("s3://safe/b",))
REPORT = {"lead": "3 items, about 4 s", "is_good": True, "counters": {"tasks": 3}, "sections": []}


class FakeProgram:
    """A program that prints what `say` gets, until `end`. `ends_on_interrupt`: also at SIGINT, with status 130."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self.command, self.variables = command, variables
        self.ends_on_interrupt = True
        self.signals: list[str] = []
        self._status = 0
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._ended = asyncio.Event()

    def say(self, line: str) -> None:
        self._lines.put_nowait(line)

    def end(self, status: int) -> None:
        self._status = status
        self._lines.put_nowait(None)
        self._ended.set()

    async def lines(self) -> AsyncIterator[str]:
        while (line := await self._lines.get()) is not None:
            yield line

    async def wait(self) -> int:
        await self._ended.wait()
        return self._status

    def interrupt(self) -> None:
        self.signals.append("interrupt")
        if self.ends_on_interrupt:
            self.end(130)

    def kill(self) -> None:
        self.signals.append("kill")
        self.end(-9)


class Server:
    """The endpoints in the simulated world. `descriptions`: how often `bk spark jobs` was run."""

    def __init__(self, world: World, described: Callable[[], str], config: SiteConfig) -> None:
        self.programs: list[FakeProgram] = []
        self.descriptions = 0
        self._described = described
        self.runtime: Runtime = replace(
            world.runtime("bookie"), output_of=self._output_of, start_program=self._start_program
        )
        self.jobs = Jobs(self.runtime.clock)
        client = SharedClient(self.runtime, lambda: MemoryDriver(world.metadata, self.runtime), ClientConfig())
        self.client = client
        self.endpoints = SparkJobs(Process(client, None, None, None, self.jobs, config))
        self._handlers = {(route.method, route.path): route.handler for route in self.endpoints.routes}

    async def _output_of(self, command: Sequence[str]) -> str:
        self.descriptions += 1
        assert list(command[-4:]) == ["bookies.admin.cli", "spark", "jobs", "--json"]
        return self._described()

    async def _start_program(self, command: Sequence[str], variables: Mapping[str, str]) -> FakeProgram:
        self.programs.append(FakeProgram(command, variables))
        return self.programs[-1]

    @property
    def program(self) -> FakeProgram:
        return self.programs[-1]

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        job: str = "",
        role: Role = Role.ADMINISTRATOR,
        **query: str,
    ) -> Response:
        data = b"" if body is None else json.dumps(body).encode()
        user = User("ada", role, ())
        request = Request(method, path, query, "localhost", body=data, user=user, values={"job": job})
        return await self._handlers[method, f"/api/v1{path}"](request)

    async def post(self, path: str, body: object, **rest: Any) -> Any:
        response = await self.call("POST", path, body, **rest)
        assert isinstance(response.body, bytes)
        return json.loads(response.body)

    def report(self, content: object = None) -> None:
        """Write the report that the program was asked for."""
        for word in self.program.command:
            if word.startswith("--report="):
                path, data = word.removeprefix("--report="), json.dumps(content or REPORT).encode()
                self.runtime.disk.replace_bytes(path, b"<!doctype html>" if path.endswith("html") else data)

    async def forecast(self, body: object) -> str:
        """Let a forecast end well, and return its job."""
        row = await self.post("/jobs", body)
        self.report()
        self.program.end(0)
        await until(lambda: row["id"] in self.jobs.rows and not self.jobs.is_running(row["id"]))
        return str(row["id"])


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  (virtual time)
        await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def description() -> str:
    return bk("spark", "jobs", "--json").out


Serve = Callable[..., None]


@pytest.fixture
def serve(description: str) -> Serve:
    def run(
        body: Callable[[Server], Awaitable[None]],
        *,
        config: SiteConfig = CONFIG,
        described: Callable[[], str] = lambda: description,
    ) -> None:
        async def inside(world: World) -> None:
            server = Server(world, described, config)
            try:
                await body(server)
            finally:
                await server.jobs.stop()
                await server.client.close()

        World().run(inside)

    return run


def test_a_forecast_then_the_run_with_its_progress_and_report(serve: Serve) -> None:
    async def body(server: Server) -> None:
        row = await server.post("/jobs", {"job": "scrub", "options": {"level": 1}, "rate": 5}, role=Role.OPERATOR)
        assert (row["id"], row["state"], row["mode"], row["spark"], row["by"]) == (
            "1",
            "running",
            "plan",
            "scrub",
            "ada",
        )
        program = server.program
        assert {"--plan-only", "--level=1", "--rate=5.0", "--end-with-stdin"} <= set(program.command)
        assert "--metadata" not in " ".join(program.command)
        assert program.variables["BK_METADATA"].startswith("memory:")
        with pytest.raises(Problem, match="job 1 runs"):
            await server.post("/jobs", {"job": "usage"})
        with pytest.raises(Problem, match="no forecast that was made: it is running"):
            await server.post("/jobs/{job}/run", {}, job="1")
        with pytest.raises(Problem, match="job 1 has no report"):
            await server.call("GET", "/jobs/{job}/report", job="1")
        server.report()
        program.end(0)
        await until(lambda: server.jobs.rows["1"]["state"] == "done")
        assert server.jobs.rows["1"]["result"]["lead"] == "3 items, about 4 s"

        row = await server.post("/jobs/{job}/run", None, job="1", role=Role.OPERATOR)  # it changes nothing
        assert (row["id"], row["mode"], row["run"]) == ("2", "run", server.jobs.rows["1"]["run"])
        assert "--plan-only" not in server.program.command
        for line in ("WARNING: x", "", "scrub, run x: 3 items", "  scrub: 1 of 3 tasks, 15 s", *["noise"] * 50):
            server.program.say(line)
        await until(lambda: server.jobs.rows["2"]["progress"] == "scrub: 1 of 3 tasks, 15 s")
        await until(lambda: len(server.jobs.rows["2"]["messages"]) == LINES_MAX)
        server.report({**REPORT, "is_good": False})
        server.program.end(1)
        await until(lambda: server.jobs.rows["2"]["state"] == "done")
        assert server.jobs.rows["2"]["result"] == {
            "status": 1,
            "lead": "3 items, about 4 s",
            "is_good": False,
            "counters": {"tasks": 3},
        }
        answer = await server.call("GET", "/jobs/{job}/report", job="2")
        assert (answer.content_type, answer.body) == (
            "application/json",
            json.dumps({**REPORT, "is_good": False}).encode(),
        )
        answer = await server.call("GET", "/jobs/{job}/report", job="2", form="html")
        assert answer.body == b"<!doctype html>"
        policy = answer.headers["Content-Security-Policy"]
        assert ("default-src 'none'" in policy, "sandbox" in policy, "script" in policy) == (True, True, False)
        with pytest.raises(Problem, match="form=xml"):
            await server.call("GET", "/jobs/{job}/report", job="2", form="xml")
        with pytest.raises(Problem, match="no forecast that was made: it is done"):
            await server.post("/jobs/{job}/run", {}, job="2")
        server.runtime.disk.unlink(f"/jobs/{row['run']}/scrub-report.json")
        with pytest.raises(Problem, match="deleted from /jobs"):
            await server.call("GET", "/jobs/{job}/report", job="2")
        assert server.descriptions == 1

    serve(body)


def test_what_changes_something_is_a_dry_run_first_and_needs_an_administrator(serve: Serve) -> None:
    async def body(server: Server) -> None:
        job = await server.forecast({"job": "backup", "options": {"to": "s3://safe/b"}, "run": "may"})
        with pytest.raises(Problem, match="needs the role administrator") as found:
            await server.post("/jobs/{job}/run", {"mode": "run"}, job=job, role=Role.OPERATOR)
        assert found.value.status == 403
        with pytest.raises(Problem, match="must be run or dry-run"):
            await server.post("/jobs/{job}/run", {"mode": ["run"]}, job=job)
        row = await server.post("/jobs/{job}/run", {}, job=job, role=Role.OPERATOR)
        assert (row["mode"], row["run"]) == ("dry-run", "may-dry-run")
        assert "--dry-run" in server.program.command
        server.report()
        server.program.end(0)
        await until(lambda: not server.jobs.is_running(row["id"]))
        row = await server.post("/jobs/{job}/run", {"mode": "run"}, job=row["id"])  # a dry run will do
        assert (row["mode"], row["run"]) == ("run", "may")
        assert server.program.command[-2:] == ["--", "s3://safe/b"]

    serve(body)


def test_a_forecast_that_is_old_and_jobs_without_one(serve: Serve) -> None:
    async def body(server: Server) -> None:
        job = await server.forecast({"job": "usage"})
        await asyncio.sleep(FORECAST_AGE_MS / 1000 + 1)
        with pytest.raises(Problem, match="older than an hour"):
            await server.post("/jobs/{job}/run", {}, job=job)
        other = server.jobs.start("recover b1", "ada", asyncio.sleep(0))
        with pytest.raises(Problem, match="it is no Spark job"):
            await server.post("/jobs/{job}/run", {}, job=other)
        with pytest.raises(Problem, match="there is no job 99"):
            await server.post("/jobs/{job}/run", {}, job="99")

    serve(body)


@pytest.mark.parametrize(
    ("lines", "status", "message"),
    [
        (
            ["bk spark: plan='x': no repair plan there", "last"],
            2,
            "ended with status 2: plan='x': no repair plan there",
        ),
        (["java.lang.OutOfMemoryError"], -9, "status -9: java.lang.OutOfMemoryError; run r1 can be continued"),
        ([], 0, "status 0: without a message"),  # and without a report
    ],
)
def test_a_program_that_fails(serve: Serve, lines: list[str], status: int, message: str) -> None:
    async def body(server: Server) -> None:
        job = await server.forecast({"job": "scrub", "run": "r1"})
        row = await server.post("/jobs/{job}/run", {}, job=job)
        for line in lines:
            server.program.say(line)
        server.program.end(status)
        await until(lambda: not server.jobs.is_running(row["id"]))
        assert server.jobs.rows[row["id"]]["state"] == "failed"
        assert message in server.jobs.rows[row["id"]]["error"]

    serve(body)


def test_a_job_is_interrupted_and_killed_if_that_has_no_effect(serve: Serve) -> None:
    async def body(server: Server) -> None:
        for ends, signals in ((True, ["interrupt"]), (False, ["interrupt", "kill"])):
            row = await server.post("/jobs", {"job": "scrub"})
            server.program.ends_on_interrupt = ends
            assert (await server.jobs.cancel(row["id"]))["state"] == ("cancelled" if ends else "cancelling")
            if not ends:
                await server.jobs.cancel(row["id"])  # again: waits on
                await asyncio.sleep(END_S)
            assert (server.jobs.rows[row["id"]]["state"], server.program.signals) == ("cancelled", signals)
        row = await server.post("/jobs", {"job": "scrub"})
        server.report()
        server.program.end(0)
        assert (await server.jobs.cancel(row["id"]))["state"] == "done"  # it has ended before
        row = await server.post("/jobs", {"job": "scrub"})
        server.program.ends_on_interrupt = False
        began = server.runtime.clock.monotonic()
        await server.jobs.stop()
        assert server.program.signals == ["interrupt", "kill"]
        assert STOP_S <= server.runtime.clock.monotonic() - began < END_S

    serve(body)


def test_servers_that_start_none(serve: Serve) -> None:
    async def unset(server: Server) -> None:
        for method, path in (("GET", "/spark-jobs"), ("POST", "/jobs")):
            with pytest.raises(Problem, match="starts no Spark jobs") as found:
                await server.call(method, path, {"job": "scrub"} if method == "POST" else None)
            assert (found.value.status, "http_jobs_directory" in found.value.next_step) == (409, True)

    async def without_arrow(server: Server) -> None:
        for pause_s, count in ((0, 1), (1, 1), (AGAIN_S, 2)):
            await asyncio.sleep(pause_s)
            with pytest.raises(Problem, match=r"cannot run on this server: .* module pyarrow is missing") as found:
                await server.post("/jobs", {"job": "scrub"})
            assert (found.value.status, "pip install" in found.value.next_step) == (503, True)
            assert (server.descriptions, server.programs) == (count, [])

    def broken() -> str:
        raise OSError("python ended with status 1: module pyarrow is missing")

    serve(unset, config=SiteConfig())
    serve(without_arrow, described=broken)


def test_a_target_has_no_password(serve: Serve) -> None:
    async def body(server: Server) -> None:
        raise AssertionError

    with pytest.raises(ConfigError, match="http_jobs_targets has a password"):
        serve(body, config=SiteConfig(http_jobs_targets=("s3://key:secret@bucket/x",)))
