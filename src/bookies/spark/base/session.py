"""Spark session for a command: a local one, or that of the `spark-submit` that started the command."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from bookies.errors import ConfigError

DRIVER_MEMORY = "1g"
# For jobs of seconds or minutes: only the first compiler, and no garbage collection threads.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# A job raises its failures as errors, so Spark's own log is off.
LOG_SETTINGS = """rootLogger.level = off
rootLogger.appenderRef.none.ref = none
appender.none.type = Null
appender.none.name = none
"""


@contextlib.contextmanager
def session(name: str, cores: int | None = None) -> Iterator[Any]:
    """Provide a session for the duration of the block. `cores`: of a local session, default all.

    Raises `ConfigError`, with the remedy, if PySpark or Java is missing.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError("PySpark is missing: pip install 'bookies[spark]'") from error
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit started the session's Java and knows the master.
        with _own_interrupts() as pending:
            spark = SparkSession.builder.appName(f"bookies {name}").getOrCreate()
        try:
            _repeat(pending)
            yield spark
        finally:
            spark.stop()
        return
    from bookies.spark.base import java

    java.use()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"pyspark\.")  # It is about pandas' next version.
    with tempfile.TemporaryDirectory(prefix="bookies-spark-") as directory:
        with _own_interrupts() as pending:
            spark = _local(SparkSession.builder, name, cores, directory)
        try:
            _repeat(pending)
            yield spark
        finally:
            gateway = spark.sparkContext._gateway
            spark.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()  # End of input makes Java exit.
            gateway.proc.wait()


@contextlib.contextmanager
def _own_interrupts() -> Iterator[list[int]]:
    """Keep the handlers of signals while a session starts. Yields the number of a first signal, which waits for that.

    PySpark's handler makes Java cancel all jobs over a connection that may have a call in progress, and the answer to
    that is an error of Py4J. An interruption while Java starts would leave it behind: it fails, and does not end.
    """
    pending: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield pending  # PySpark sets no handler there either.
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in handlers.items() if callable(handler)}

    def remember(number: int, frame: FrameType | None) -> None:
        if pending:
            before[signal.Signals(number)](number, frame)  # the user is impatient
        pending.append(number)

    for number in before:
        signal.signal(number, remember)
    try:
        yield pending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _repeat(pending: Sequence[int]) -> None:
    """Send this process the signal that waited."""
    if pending:
        os.kill(os.getpid(), pending[0])


def _local(builder: Any, name: str, cores: int | None, directory: str) -> Any:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    log_settings = os.path.join(directory, "log4j2.properties")
    with open(log_settings, "w") as file:
        file.write(LOG_SETTINGS)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} -Dlog4j2.configurationFile={log_settings}",
        "spark.local.dir": directory,
        "spark.sql.warehouse.dir": os.path.join(directory, "warehouse"),
        "spark.sql.shuffle.partitions": str(cores or os.cpu_count() or 1),
        "spark.sql.session.timeZone": "UTC",
    }
    builder = builder.master(f"local[{cores or '*'},2]").appName(f"bookies {name}")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
