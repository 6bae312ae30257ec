"""One broker of Kafka with its own controller, in one Java process. Its jars come from Maven Central, once."""

from __future__ import annotations

import base64
import contextlib
import os
import pathlib
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.apache.apache import jars
from tests.etcd.server import free_ports

HERE = pathlib.Path(__file__).parent
VERSION, SPARK_VERSION = "4.1.1", "4.2.0"  # those of the two files with dependencies
HEAP = "1g"  # what Kafka's own script gives a broker
RECORD_SIZE_MAX = 2 << 20
START_S = 60.0


@dataclass(frozen=True)
class Broker:
    address: str
    pid: int


def connector_path() -> str:
    """The class path of Spark's source and sink for Kafka, and of its decoder of Avro."""
    return f"{jars(SPARK_VERSION, 'spark-sql-kafka-0-10_2.13', HERE / 'connector.xml')}/*"


@contextlib.contextmanager
def broker(directory: pathlib.Path, partitions: int) -> Iterator[Broker]:
    """Start a broker that makes topics of so many partitions when they are first used. Raises `RuntimeError`."""
    directory.mkdir()
    port, controller = free_ports(2)
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": directory / "data",
        "num.partitions": partitions,
        "auto.create.topics.enable": "true",
        "offsets.topic.replication.factor": 1,
        "message.max.bytes": RECORD_SIZE_MAX,
    }
    properties = directory / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = ["java", f"-Xms{HEAP}", f"-Xmx{HEAP}", f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"]
    command += ["-cp", f"{jars(VERSION, 'kafka_2.13', HERE / 'pom.xml')}/*"]
    output = directory / "output"
    with open(output, "wb") as file:
        cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        words = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)]
        subprocess.run([*command, *words], stdout=file, stderr=file, check=True)
        process = subprocess.Popen([*command, "kafka.Kafka", str(properties)], stdout=file, stderr=file)
    try:
        _wait(process, port, output)
        yield Broker(f"127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        process.wait(60)


def _wait(process: subprocess.Popen[bytes], port: int, output: pathlib.Path) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"Kafka's broker did not start: {output.read_text()[-2000:]}")
