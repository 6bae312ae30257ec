"""One-shot faults for the sink: a source that does, at a step of a batch, what a file in a directory asks for.

Everything is pickled by value, for the processes of Spark do not see the tests' modules.
"""

from __future__ import annotations

import pathlib
from typing import Any


class Marks:
    """Faults to come, as files: `BATCH-FAULT`."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = str(directory)
        directory.mkdir(parents=True)

    def set(self, batch: int, fault: str) -> None:
        pathlib.Path(self.directory, f"{batch}-{fault}").touch()

    def left(self) -> list[str]:
        return sorted(path.name for path in pathlib.Path(self.directory).iterdir())


def faulty_source(directory: str) -> type[Any]:
    """The format `bookkeeper-faulty`, which is `bookkeeper` but for the faults of the directory."""
    import os
    import signal

    from bookies.spark.source import BookKeeperDataSource
    from bookies.spark.write.sink import StreamWriter

    def is_due(batch: int, fault: str) -> bool:
        """Whether somebody has to do it now; only the first who asks."""
        try:
            os.remove(os.path.join(directory, f"{batch}-{fault}"))
        except FileNotFoundError:
            return False
        return True

    class FaultyWriter(StreamWriter):
        def write(self, iterator: Any) -> Any:
            from pyspark import TaskContext

            batch = int(TaskContext.get().getLocalProperty("streaming.sql.batchId"))

            def rows() -> Any:
                yield from iterator
                if is_due(batch, "task raises"):
                    raise OSError("a task fails")
                if is_due(batch, "task dies"):
                    os.kill(os.getpid(), signal.SIGKILL)
                if is_due(batch, "JVM dies in a task"):
                    kill_jvm()
                if os.path.exists(os.path.join(directory, f"{batch}-every task raises")):
                    if TaskContext.get().attemptNumber() == 3:
                        is_due(batch, "every task raises")
                    raise OSError("a task fails whatever is done")

            return super().write(rows())

        def commit(self, messages: Any, batchId: int) -> None:
            if is_due(batchId, "commit raises before") or self._is_zombie_due(batchId):
                raise OSError("the driver fails before the swap")
            if is_due(batchId, "commit dies before"):
                os.kill(os.getpid(), signal.SIGKILL)
            if is_due(batchId, "JVM dies before the swap"):
                kill_jvm()
            if is_due(batchId, "answer is lost"):
                lose_answers(1)
            super().commit(messages, batchId)
            if is_due(batchId, "commit raises after"):
                raise OSError("the driver fails after the swap")
            if is_due(batchId, "commit dies after"):
                os.kill(os.getpid(), signal.SIGKILL)
            if is_due(batchId, "JVM dies after the swap"):
                kill_jvm()

        def abort(self, messages: Any, batchId: int) -> None:
            super().abort(messages, batchId)
            if is_due(batchId, "abort leaves a zombie"):
                self._write_as_zombie(messages[0])

        def _is_zombie_due(self, batch: int) -> bool:
            return os.path.exists(os.path.join(directory, f"{batch}-abort leaves a zombie"))

        def _write_as_zombie(self, message: Any) -> None:
            """A speculative copy of a task goes on after the abort, and comes to its end."""
            import pyarrow as pa

            from bookies.spark.write import sink

            identity = (message.app, message.version, message.query)
            sink._write(self._settings, identity, iter([pa.record_batch({"value": pa.array(["zombie"])})]))

    class FaultySource(BookKeeperDataSource):
        @classmethod
        def name(cls) -> str:
            return "bookkeeper-faulty"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return FaultyWriter(self.options, schema, overwrite)

    def kill_jvm() -> None:
        """The driver, which is the nearest ancestor that runs Java; then wait for the end oneself."""
        pid = os.getpid()
        while pid > 1:
            with open(f"/proc/{pid}/stat") as file:
                name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
            if name == "java":
                os.kill(pid, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            pid = int(rest.split()[1])
        raise OSError("there is no Java above this process")

    def lose_answers(count: int) -> None:
        """The store carries out so many transactions, and its answers do not arrive."""
        from bookies.errors import MetadataError
        from bookies.metadata.shared.store_driver import StoreDriver

        original = StoreDriver.transact

        async def transact(self: Any, steps: Any) -> int:
            await original(self, steps)
            StoreDriver.transact = original  # type: ignore[method-assign]
            raise MetadataError("the connection broke")

        assert count == 1
        StoreDriver.transact = transact  # type: ignore[method-assign]

    return FaultySource
