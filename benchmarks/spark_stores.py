"""The two stores that `spark.py` compares: logs of bookies, and topics of Kafka. Each makes data and takes rows."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import fastavro
from benchmarks.kafka.broker import RECORD_SIZE_MAX, Broker

import bookies as bk
from bookies.admin.cluster import LocalCluster

TASKS = 2  # parts of a read, and partitions of a topic
KAFKA = "Kafka"
SHAPES = {"E1/Qw1/Qa1": (1, 1, 1), "E3/Qw3/Qa2": (3, 3, 2)}
FILL_BYTES = 1 << 20  # of one append while data are made
TAIL_SHAPE = (3, 3, 2)
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "price", "type": "double"},
            {"name": "customer", "type": "string"},
            {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID", "SENT"]}},
            {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "note", "type": "string"},
        ],
    }
)


@dataclass(frozen=True)
class Case:
    what: str
    size: int
    shape: str
    rows: int

    @property
    def name(self) -> str:
        return f"{self.what}, {size_name(self.size)}, {self.shape}"

    @property
    def is_avro(self) -> bool:
        return self.what == "avro"

    @property
    def data(self) -> str:
        """A name of the rows that the case reads, which others share."""
        return f"{'avro' if self.is_avro else 'data'}-{self.size}-{self.rows}"


class Target(NamedTuple):
    """Where a case writes to. `end` counts the rows there, and deletes them."""

    options: dict[str, object]
    end: Callable[[], int]


class Tail(NamedTuple):
    """What a query reads, and a function that appends an entry and returns when the store has it."""

    options: dict[str, object]
    append: Callable[[bytes], object]


class Store(Protocol):
    format: str

    def pids(self) -> Sequence[int]: ...

    def source(self, spark: Any, case: Case) -> dict[str, object]:
        """The options that read the data of a case, which are made once for each size and shape."""
        ...

    def target(self, spark: Any, case: Case) -> Target: ...

    def tail(self, spark: Any) -> contextlib.AbstractContextManager[Tail]: ...


def size_name(size: int) -> str:
    return f"{size} B" if size < 1024 else f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"


def payloads(case: Case) -> list[bytes]:
    """About a MiB of payloads, each of the size of the case."""
    count = max(1, FILL_BYTES // case.size)
    if case.is_avro:
        return [order(number, case.size) for number in range(count)]
    text = os.urandom(FILL_BYTES + case.size)
    return [text[at : at + case.size] for at in range(count)]


def order(number: int, size: int) -> bytes:
    """An order of exactly so many bytes, at least 70."""
    row = {"id": number, "price": number / 100, "customer": f"customer {number % 100}", "placed": 1_700_000_000_000_000}
    row |= {"state": ("OPEN", "PAID", "SENT")[number % 3], "tags": ["new", "gift"]}
    for note in range(max(0, size - 70), size):
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, _PARSED, row | {"note": "n" * note})
        if buffer.tell() == size:
            return buffer.getvalue()
    raise ValueError(f"no order has {size} bytes")


_PARSED = fastavro.parse_schema(json.loads(SCHEMA))


class Logs:
    """Logs of the bookies of a cluster."""

    format = "bookkeeper"

    def __init__(self, cluster: LocalCluster, store: bk.blocking.Client, directory: str) -> None:
        self._cluster, self._store = cluster, store
        self._schema = pathlib.Path(directory, "order.avsc")
        self._schema.write_text(SCHEMA)
        self._numbers = itertools.count()
        self._made: set[str] = set()

    def pids(self) -> Sequence[int]:
        return self._cluster.pids()

    def options(self, **more: object) -> dict[str, object]:
        return {"bookkeeper.metadataServiceUri": self._cluster.metadata_uri} | more

    def source(self, spark: Any, case: Case) -> dict[str, object]:
        name = f"{case.data}-{case.shape[:2]}"
        if name not in self._made:
            pieces = payloads(case)
            with self._new(name, SHAPES[case.shape]).lead() as writer:
                for start in range(0, case.rows, len(pieces)):
                    writer.append_many(pieces[: case.rows - start])
            self._made.add(name)
        decoded = {"valueFormat": "avro", "valueFraming": "bare", "valueSchemaFile": self._schema}
        return self.options(subscribe=name, minPartitions=TASKS, **(decoded if case.is_avro else {}))

    def target(self, spark: Any, case: Case) -> Target:
        log = self._new(f"write-{next(self._numbers)}", SHAPES[case.shape])

        def end() -> int:
            rows = sum(extent.rows or 0 for extent in log.manifest().extents)
            log.delete()
            return rows

        return Target(self.options(log=log.name), end)

    @contextlib.contextmanager
    def tail(self, spark: Any) -> Iterator[Tail]:
        log = self._new(f"tail-{next(self._numbers)}", TAIL_SHAPE)
        with log.lead() as writer:
            yield Tail(self.options(subscribe=log.name), writer.append)
        log.delete()

    def _new(self, name: str, shape: tuple[int, int, int]) -> Any:
        log = self._store.log(name)
        log.create(ensemble=shape[0], write_quorum=shape[1], ack_quorum=shape[2])
        return log


class Topics:
    """Topics of a broker of Kafka, through Spark's source and sink."""

    format = "kafka"

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._numbers = itertools.count()
        self._made: set[str] = set()

    def pids(self) -> Sequence[int]:
        return [self._broker.pid]

    def options(self, **more: object) -> dict[str, object]:
        return {"kafka.bootstrap.servers": self._broker.address} | more

    def source(self, spark: Any, case: Case) -> dict[str, object]:
        name = case.data
        if name not in self._made:
            from pyspark.sql import functions as f

            pieces = payloads(case)
            pool = spark.createDataFrame(
                [(at, bytearray(piece)) for at, piece in enumerate(pieces)], "at INT, value BINARY"
            )
            rows = spark.range(0, case.rows, 1, TASKS).select((f.col("id") % len(pieces)).cast("int").alias("at"))
            frame = rows.join(f.broadcast(pool), "at").select("value")
            frame.write.format("kafka").options(**self._sink(name)).save()
            self._made.add(name)
        return self.options(subscribe=name)

    def target(self, spark: Any, case: Case) -> Target:
        name = f"write-{next(self._numbers)}"
        return Target(self._sink(name), lambda: self._end(spark, name))

    @contextlib.contextmanager
    def tail(self, spark: Any) -> Iterator[Tail]:
        name = f"tail-{next(self._numbers)}"
        kafka = spark._jvm.org.apache.kafka.clients
        with contextlib.closing(kafka.producer.KafkaProducer(self._properties(spark))) as producer:

            def append(value: bytes) -> None:
                producer.send(kafka.producer.ProducerRecord(name, value)).get()

            append(b"0.0")  # The topic is made by its first record.
            yield Tail(self.options(subscribe=name), append)
        self._delete(spark, name)

    def _sink(self, name: str) -> dict[str, object]:
        # Larger batches than the producer's 16 KiB, or every batch would be one record of the larger sizes.
        larger = {"kafka.batch.size": 256 << 10, "kafka.linger.ms": 5, "kafka.max.request.size": RECORD_SIZE_MAX}
        return self.options(topic=name) | larger

    def _end(self, spark: Any, name: str) -> int:
        jvm = spark._jvm
        partitions = jvm.java.util.ArrayList()
        for number in range(TASKS):
            partitions.add(jvm.org.apache.kafka.common.TopicPartition(name, number))
        consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(self._properties(spark))
        with contextlib.closing(consumer):
            rows = sum(dict(consumer.endOffsets(partitions)).values())
        self._delete(spark, name)
        return rows

    def _delete(self, spark: Any, name: str) -> None:
        names = spark._jvm.java.util.ArrayList()
        names.add(name)
        with contextlib.closing(
            spark._jvm.org.apache.kafka.clients.admin.Admin.create(self._properties(spark))
        ) as admin:
            admin.deleteTopics(names).all().get()

    def _properties(self, spark: Any) -> Any:
        package = "org.apache.kafka.common.serialization.ByteArray"
        found = spark._jvm.java.util.Properties()
        found.setProperty("bootstrap.servers", self._broker.address)
        for role, kind in (
            ("key", "Serializer"),
            ("value", "Serializer"),
            ("key", "Deserializer"),
            ("value", "Deserializer"),
        ):
            found.setProperty(f"{role}.{kind.lower()}", package + kind)
        return found
