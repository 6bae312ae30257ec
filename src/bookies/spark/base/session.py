"""A Spark session for a command: a local one, or that of `spark-submit` when it started us."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from bookies.errors import ConfigError

DRIVER_MEMORY = "1g"
# For jobs of seconds or minutes: the first compiler alone, and no threads that collect.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# What goes wrong in a job comes out of it as an error; Spark's own account of it is for those who ask for it.
LOG_SETTINGS = """rootLogger.level = off
rootLogger.appenderRef.none.ref = none
appender.none.type = Null
appender.none.name = none
"""


@contextlib.contextmanager
def session(name: str, cores: int | None = None) -> Iterator[Any]:
    """A session for as long as the block. `cores`: of a local one, default all.

    Raises `ConfigError` when PySpark or Java is missing, with the way out.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError("this needs PySpark: pip install 'bookies[spark]'") from error
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has made the session's Java, and knows the master.
        with _own_interrupts():
            spark = SparkSession.builder.appName(f"bookies {name}").getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()
        return
    from bookies.spark.base import java

    java.use()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"pyspark\.")  # It speaks of pandas' next version.
    with tempfile.TemporaryDirectory(prefix="bookies-spark-") as directory:
        with _own_interrupts():
            spark = _local(SparkSession.builder, name, cores, directory)
        try:
            yield spark
        finally:
            gateway = spark.sparkContext._gateway
            spark.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()  # Its end is the sign for Java to end.
            gateway.proc.wait()


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Leave SIGINT as it was: PySpark's own handler has Java cancel all jobs, on the connection on which a question may
    just have been put to it, and what comes back then is an error of Py4J's. Whoever runs a job cancels it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # PySpark handles nothing there either.
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
