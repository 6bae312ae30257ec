"""The common structure of all fleet jobs.

    items -> tasks, packed by bytes -> Spark, one partition for each task -> result rows -> Parquet

An item is a piece of work that can be repeated without harm; its name is the same in every run. Its result is a row
(run_id, item, started, ended, outcome, detail). With an output directory the rows of each finished task are written at
once, and they are the checkpoint: an interrupted run is repeated under the same run id and skips finished items. A
failed item is a row with the reason; the job itself does not fail.

    DIR/RUN/parameters   the request; the same run id with other parameters is refused
    DIR/RUN/results      the rows
    DIR/RUN/...          the tables of the job

This module imports PySpark only inside functions: the command's `--help` must work without it. Source: spark 5.0.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakSet

import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from bookies.client.transport.watcher import DOWN
from bookies.errors import BookKeeperError, ConfigError, InvalidArgument
from bookies.model import NAME_CHARACTERS, BookieMode
from bookies.protocol.pacing import RateLimit
from bookies.runtime.tasks import all_of
from bookies.spark.base import runtime
from bookies.spark.base.arrow import schema_of_ddl
from bookies.spark.base.counters import Sums, work_of
from bookies.spark.base.options import Option as Option
from bookies.spark.jobs.shared.packing import TASK_SIZE, TASKS_MAX, Estimate, Item, estimate, pack
from bookies.spark.jobs.shared.progress import Begun, Progress

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.client.repair import Administration

log = logging.getLogger("bookies.spark.jobs.common")
_prepared: WeakSet[Any] = WeakSet()
Holds = Callable[[str, Mapping[str, Any]], bool]
PLAN, DRY_RUN, RUN = "plan", "dry-run", "run"
MODES = (PLAN, DRY_RUN, RUN)
CONTINUED = ("backup", "restore-cluster")  # jobs whose items find out themselves what is done
ITEMS_AT_ONCE = 4  # per task: small ones mostly wait
DONE, FAILED, GONE, PARTLY, WAITING = "done", "failed", "gone", "partly", "waiting"
UNFINISHED = (FAILED, PARTLY, WAITING)  # outcomes that a repetition of the run does not skip
RESULT_SCHEMA = "run_id STRING, item STRING, started TIMESTAMP, ended TIMESTAMP, outcome STRING, detail STRING"
_RESULT = schema_of_ddl(RESULT_SCHEMA)
_WORK = schema_of_ddl("task INT, place INT, name STRING, size BIGINT, bookies ARRAY<STRING>, arguments STRING")
# Files of a finished task are visible at once, not when the job ends: they are the checkpoint.
COMMIT_BY_TASK = ("mapreduce.fileoutputcommitter.algorithm.version", "2")


class JobConfig(Struct, frozen=True):
    """Configuration of every job. `options`: the job's own, by name; see OPTIONS of its module.

    `output`: the directory of the runs, any that Spark can write to; None: results are kept in memory, and an
    interrupted run starts over. `bytes_per_s`: from and to each bookie, for the whole job; it is divided by
    `processes`, the number of tasks that run at once (default: Spark's parallelism). `task_size`: bytes. `counters`:
    `execute` adds what the tasks have read and written.
    """

    uri: str
    run_id: str = ""
    mode: str = RUN
    output: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    bytes_per_s: float | None = None
    processes: int | None = None
    task_size: int = TASK_SIZE
    tasks_max: int = TASKS_MAX
    is_quiet: bool = False
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def directory(self) -> str | None:
        return f"{self.output.rstrip('/')}/{self.run_id}" if self.output else None


def checked(config: JobConfig, options: Iterable[Option]) -> JobConfig:
    """Return the configuration with every option of the job. Raises `InvalidArgument`."""
    known = {option.name: option for option in options}
    for name in config.options:
        if name not in known:
            raise InvalidArgument(f"unknown option {name!r}; there are {', '.join(known)}")
    if config.mode not in MODES:
        raise InvalidArgument(f"mode={config.mode!r}: must be one of {', '.join(MODES)}")
    if config.bytes_per_s is not None and config.bytes_per_s <= 0:
        raise InvalidArgument(f"bytes_per_s={config.bytes_per_s}: must be above 0")
    if not NAME_CHARACTERS.issuperset(config.run_id):
        raise InvalidArgument(f"run_id={config.run_id!r}: letters, digits, '-', '.' and '_' only")
    values = {name: config.options.get(name, option.default) for name, option in known.items()}
    for name, value in values.items():
        choices = known[name].choices
        if choices is not None and value not in choices and value is not known[name].default:
            raise InvalidArgument(f"{name}={value!r}: must be one of {', '.join(map(str, choices))}")
    run_id = config.run_id or f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"
    return replace(config, options=values, run_id=run_id)


# -- on the driver ---------------------------------------------------------------------------------------------------


def ask(uri: str, question: Any) -> Any:
    """Run `question(client)` on the driver. Raises its own error instead of a Spark error with a traceback."""

    async def main() -> Any:
        async with runtime.worker().new_client(uri) as client:
            return await question(client)

    coroutine: Coroutine[Any, Any, Any] = main()
    return runtime.worker().run(coroutine)


def now_ms() -> int:
    """Return the wall time, ms since 1970."""
    return int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)


async def ledger_ids(client: Client) -> list[int]:
    """Return the ids of all ledgers: a question for `ask`."""
    return [ledger_id async for page in client.administration().ledger_ids() for ledger_id in page]


def prepare(spark: Any) -> None:
    """Register the source in a session, once: each registration takes a second."""
    from bookies.spark.frames import register

    if spark not in _prepared:
        register(spark)
        _prepared.add(spark)


def table(spark: Any, config: JobConfig, name: str) -> Any:
    """Return one of the tables of `spark/read/tables.py` as a DataFrame."""
    prepare(spark)
    reader = spark.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", config.uri)
    return reader.option("table", name).load()


@contextlib.contextmanager
def kept(frames: Mapping[str, Any], *, is_stored: bool = False) -> Iterator[Mapping[str, Any]]:
    """Keep tables for the duration of the block, so that each is read from the cluster once. `is_stored`: they are."""
    if not is_stored:
        frames = {name: frame.persist() for name, frame in frames.items()}
    try:
        yield frames
    finally:
        for frame in frames.values():
            frame.unpersist()


def reader_of(spark: Any) -> Any:
    """Return a reader of files and directories by name.

    By default Spark treats `*`, `?`, `[` and `{` in names as patterns.
    """
    return spark.read.option("__globPaths__", "false")


def frame_of(spark: Any, rows: Sequence[Sequence[Any]], ddl: str) -> Any:
    """Return rows as a DataFrame, also if there are none."""
    return spark.createDataFrame([tuple(row) for row in rows], ddl)


def spread(frame: Any, tasks: int) -> Any:
    """Return the frame with the rows of each `task` in a partition of their own."""
    count = max(1, tasks)
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(count, "task")
    # Spark 4.0 has only the hash, which puts some tasks together and leaves partitions empty.
    return frame.repartition(count, "task")


def save(frame: Any, config: JobConfig, name: str) -> Any:
    """Write a table of the run, replacing an earlier one, and return it as written; without output, as it is."""
    if config.directory is None:
        return frame
    path = f"{config.directory}/{name}"
    frame.coalesce(1).write.mode("overwrite").parquet(path)
    return reader_of(frame.sparkSession).schema(frame.schema).parquet(path)


class Outcome(NamedTuple):
    """Result of an item. `detail`: JSON values."""

    outcome: str
    detail: Mapping[str, Any]


class Work(Protocol):
    """Work of a job on an item, in a task. Pickled for the task: plain fields of an importable class."""

    async def carry_out(self, tools: Tools, item: Item) -> Outcome: ...


class Run(Struct, frozen=True):
    """Run that has ended, or was only planned. `results`: one row for each item, including earlier attempts."""

    config: JobConfig
    estimate: Estimate
    skipped: int
    results: Any

    def details(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return item, outcome and detail of each item."""
        table = self.results.select("item", "outcome", "detail").toArrow()
        return [
            (row["item"], row["outcome"], json.loads(row["detail"])) for batch in table.to_batches() for row in
            batch.to_pylist()
        ]  # fmt: skip

    def totals(self) -> list[tuple[str, str, int, int, str]]:
        """Return item, outcome, entries, bytes and error of each item."""
        return [
            (name, outcome, detail.get("entries", 0), detail.get("bytes", 0), str(detail.get("error", "")))
            for name, outcome, detail in self.details()
        ]


def execute(
    spark: Any, config: JobConfig, name: str, items: Sequence[Item], work: Work, holds: Holds | None = None
) -> Run:
    """Carry out the items that are not finished yet. In mode `plan` only plan them.

    `holds(item, detail)`: called on the driver for the done items of earlier attempts. Reports whether the result still
    exists; if not, the item is repeated.

    An interruption ends the tasks; the results of finished tasks stay. Raises `InvalidArgument`, `ConfigError`.
    """
    prepare(spark)
    finished = _finished(spark, config, name, holds)
    left = [item for item in items if item.name not in finished]
    cores = cores_of(spark, config)
    tasks = pack(left, task_size=config.task_size, tasks_max=config.tasks_max, tasks_min=2 * cores)
    plan = estimate(name, tasks, cores=cores, bytes_per_s=config.bytes_per_s)
    skipped = len(items) - len(left)
    if config.mode == PLAN:
        return Run(config, plan, skipped, spark.createDataFrame(_work_table(tasks)))
    counters = spark.sparkContext.accumulator({}, Sums())
    carry = CarryOut(config, work, rate_of(spark, config), name, counters)
    is_kept = config.directory is not None or name in CONTINUED
    begun = Begun(name, config.run_id, plan, skipped, is_kept=is_kept)
    with Progress(spark, begun, is_quiet=config.is_quiet) as progress:
        progress.begin()
        frame = spark.createDataFrame(_work_table(tasks))
        results = spread(frame, len(tasks)).mapInArrow(carry, RESULT_SCHEMA)
        if config.directory is None:
            results = results.persist()
            results.count()
        elif tasks:
            results.write.mode("append").option(*COMMIT_BY_TASK).parquet(f"{config.directory}/results")
    Sums().addInPlace(config.counters, counters.value)
    return Run(config, plan, skipped, _results(spark, config) if config.directory else results)


def cores_of(spark: Any, config: JobConfig) -> int:
    """Return how many tasks run at once."""
    return config.processes or int(spark.sparkContext.defaultParallelism)


def rate_of(spark: Any, config: JobConfig) -> float | None:
    """Return a task's share of the limit of each bookie."""
    return None if config.bytes_per_s is None else config.bytes_per_s / cores_of(spark, config)


def _finished(spark: Any, config: JobConfig, name: str, holds: Holds | None) -> set[str]:
    """Return the names of items that earlier attempts of this run have done. Writes the parameters of a new run."""
    if config.directory is None or config.mode == PLAN or not is_repeated(spark, config, name):
        return set()
    done = _results(spark, config).where(f"outcome NOT IN {UNFINISHED}").select("item", "outcome", "detail").toArrow()
    return {
        row["item"] for row in done.to_pylist() if holds is None or row["outcome"] != DONE or
        holds(row["item"], json.loads(row["detail"]))
    }  # fmt: skip


def is_repeated(spark: Any, config: JobConfig, name: str) -> bool:
    """Report whether a run was begun under this id; if not, write its parameters. Raises `InvalidArgument`."""
    asked = {"job": name, "uri": config.uri, "mode": config.mode, **config.options}
    text = json.dumps(asked, sort_keys=True, default=str)
    path = f"{config.directory}/parameters"
    rows = _or_none(lambda: reader_of(spark).text(path).collect())
    if not rows:
        spark.createDataFrame([(text,)], "value STRING").coalesce(1).write.mode("overwrite").text(path)
        return False
    if rows[0][0] != text:
        raise InvalidArgument(
            f"run {config.run_id} in {config.output} was begun with {rows[0][0]}, not with {text}: "
            "repeat it as it was, or choose another run id"
        )
    return True


def _or_none(read: Any) -> Any:
    """Return what `read` returns, or None if its path does not exist."""
    from pyspark.errors import AnalysisException

    try:
        return read()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None


def _results(spark: Any, config: JobConfig) -> Any:
    """Return the last row of each item."""
    path = f"{config.directory}/results"
    stored = _or_none(lambda: reader_of(spark).schema(RESULT_SCHEMA).parquet(path))
    if stored is None:
        return spark.createDataFrame([], RESULT_SCHEMA)
    from pyspark.sql import functions as f

    last = f.max_by(f.struct("started", "ended", "outcome", "detail"), "ended").alias("last")
    rows = stored.where(f.col("run_id") == config.run_id).groupBy("run_id", "item").agg(last)
    return rows.select("run_id", "item", "last.*")


def _work_table(tasks: Sequence[Sequence[Item]]) -> pa.Table:
    rows = [(index, place, item) for index, task in enumerate(tasks) for place, item in enumerate(task)]
    columns = {
        "task": [index for index, _, _ in rows],
        "place": [place for _, place, _ in rows],
        "name": [item.name for _, _, item in rows],
        "size": [item.size for _, _, item in rows],
        "bookies": [list(item.bookies) for _, _, item in rows],
        "arguments": [item.arguments for _, _, item in rows],
    }
    return pa.Table.from_pydict(columns, schema=_WORK)


# -- in a task -------------------------------------------------------------------------------------------------------


class Paces:
    """Limits of the bytes per second from and to each bookie, for one task. `rate`: None: no limit."""

    def __init__(self, rate: float | None) -> None:
        self.bytes_per_s = rate
        self._paces: dict[str, RateLimit] = {}

    def pace(self, bookie: str) -> RateLimit:
        """Return the limit of one bookie, shared by all items of the task."""
        return self._paces.setdefault(bookie, RateLimit(self.bytes_per_s))

    async def spent(self, bookies: Sequence[str], size: int) -> None:
        """Record `size` bytes from or to these bookies together, and wait as long as the limit of each demands."""
        if self.bytes_per_s is None or not bookies:
            return
        now = asyncio.get_running_loop().time()
        pause_s = max(self.pace(bookie).charge(size // len(bookies), now) for bookie in bookies)
        if pause_s > 0:
            await asyncio.sleep(pause_s)


class Tools(Paces):
    """Tools for the work on items. `modes`: of each bookie when the task began.

    `gone`: bookies that stopped answering since, with their last error.
    """

    def __init__(self, client: Client, modes: Mapping[str, str], rate: float | None) -> None:
        super().__init__(rate)
        self.client = client
        self.administration: Administration = client.administration()
        self.known = list(modes)
        self.registered = [bookie for bookie, mode in modes.items() if mode != DOWN]
        self.writable = [bookie for bookie, mode in modes.items() if mode == BookieMode.WRITABLE.value]
        self.gone: dict[str, str] = {}


class CarryOut:
    """Function that Spark runs over the rows of one planned task. `counters`: an accumulator of `Sums`."""

    def __init__(self, config: JobConfig, work: Work, rate: float | None, job: str, counters: Any) -> None:
        self._uri, self._run_id, self._work, self._rate, self._job = config.uri, config.run_id, work, rate, job
        self._counters = counters

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: int(row["place"]))
        items = [Item(row["name"], row["size"], tuple(row["bookies"]), row["arguments"]) for row in rows]
        if not items:
            return
        results = runtime.worker().run(self._all(items))
        counts: dict[str, int] = {}
        for result in results:
            counts[result["outcome"]] = counts.get(result["outcome"], 0) + 1
        log.info(json.dumps({"job": self._job, "run": self._run_id, "items": len(items), "outcomes": counts}))
        yield pa.RecordBatch.from_pylist(results, schema=_RESULT)

    async def _all(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        waiting = iter(items)
        async with runtime.worker().new_client(self._uri) as client:
            tools = Tools(client, {str(bookie.id): bookie.mode for bookie in await client.bookies()}, self._rate)

            async def work() -> None:
                for item in waiting:
                    results.append(await self._one(tools, item))

            await all_of(work() for _ in range(min(ITEMS_AT_ONCE, len(items))))
            self._counters.add(work_of(client))
        return results

    async def _one(self, tools: Tools, item: Item) -> dict[str, Any]:
        started = datetime.datetime.now(datetime.UTC)
        try:
            outcome, detail = await self._work.carry_out(tools, item)
        except BookKeeperError as error:
            outcome, detail = FAILED, {"error": str(error), "kind": type(error).__name__}
        except Exception as error:
            # One failing item must not end the others. Its row and the log have the error.
            log.exception("item %s", item.name)
            outcome, detail = FAILED, {"error": repr(error), "kind": type(error).__name__}
        return {
            "run_id": self._run_id,
            "item": item.name,
            "started": started,
            "ended": datetime.datetime.now(datetime.UTC),
            "outcome": outcome,
            "detail": json.dumps(detail),
        }


def refuse_speculation(spark: Any) -> None:
    """Refuse to start a job that writes with speculative execution. Raises `ConfigError`."""
    if spark.conf.get("spark.speculation", "false") == "true":
        raise ConfigError("this job writes, so no task may run twice at once: set spark.speculation=false")
