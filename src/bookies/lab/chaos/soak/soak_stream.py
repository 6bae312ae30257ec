"""Process of `bk chaos --soak --spark`: a streaming query of Spark that follows the logs of the run and checks them.

Rows of a log must have consecutive offsets, also over restarts of the process, and a batch that is repeated must be the
same. After each batch the process replaces its state file, a JSON object:

    batch, digest   number of the last batch, and the digest of its rows
    seen            log -> [offset, number] of its last row
    rows, repeated  rows of all batches, and batches that were repeated
    failures        queries that ended with an error; the next one continues at the checkpoint
    violations      broken promises, in words

Its parameters: `metadata`, `logs`, `checkpoint`, `state`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from bookies.lab.chaos.chaos_processes import ChaosProcess
from bookies.lab.chaos.soak.soak_log import log_number
from bookies.lab.demo.demo_spark import end_with_owner, require_packages, session
from bookies.spark.base import java

CURSOR = "spark"  # holds truncation back in each log
TRIGGER = "2 seconds"
PAUSE_S = 1.0  # between two queries
EMPTY: dict[str, Any] = {
    "batch": -1,
    "digest": "",
    "seen": {},
    "rows": 0,
    "repeated": 0,
    "failures": 0,
    "violations": [],
}


def require_spark() -> None:
    """Raise `ConfigError` unless this machine can run the query."""
    require_packages("--spark", "spark")
    java.use()


class Stream:
    """The process, as seen by the conductor of the run, in `directory`."""

    def __init__(self, directory: pathlib.Path, metadata_uri: str, logs: Sequence[str]) -> None:
        self._state = directory / "stream.json"
        self._log = directory / "stream.log"
        self._parameters = {
            "metadata": metadata_uri,
            "logs": list(logs),
            "checkpoint": str(directory / "stream"),
            "state": str(self._state),
        }
        self._process: ChaosProcess | None = None

    def start(self) -> None:
        self._process = ChaosProcess(__name__, self._log, self._parameters)

    @property
    def state(self) -> dict[str, Any]:
        return read_state(self._state)

    def pids(self) -> list[int]:
        """Return the ids of its processes: Python, Java, and the workers that Java starts."""
        if self._process is None:
            return []
        pids = map(int, filter(str.isdigit, os.listdir("/proc")))
        return [pid for pid in pids if _session_of(pid) == self._process.pid]

    def restart(self) -> None:
        """Kill all of its processes, and start it again."""
        self.kill()
        self.start()

    def kill(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.kill()


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def read_state(path: pathlib.Path) -> dict[str, Any]:
    """Return the state, or that of a process that has had no batch."""
    try:
        state: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {**EMPTY}
    return state


def write_state(path: pathlib.Path, state: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(state))
    temporary.replace(path)


def checked(state: dict[str, Any], batch: int, rows: list[tuple[str, int, bytes]]) -> dict[str, Any]:
    """Return the state behind a batch. `rows`: (log, offset, content), in the order of logs and offsets."""
    state = {**state, "violations": [*state["violations"]]}
    digest = hashlib.sha256(repr(rows).encode()).hexdigest()
    if batch == state["batch"]:
        state["repeated"] += 1
        if digest != state["digest"]:
            state["violations"].append(f"exactly once: batch {batch} has other rows when it is repeated")
        return state
    if batch < state["batch"]:
        state["violations"].append(f"exactly once: batch {batch} follows batch {state['batch']}")
    seen = {**state["seen"]}
    for log, offset, content in rows:
        number, (last_offset, last_number) = log_number(log, content), seen.get(log, (None, None))
        if last_offset is not None and offset != last_offset + 1:
            state["violations"].append(f"exactly once: log {log}: offset {offset} follows {last_offset}")
        # The number repeats if an append of unknown outcome was repeated.
        if number is None or (last_number is not None and number > last_number + 1):
            state["violations"].append(f"none lost: log {log}: entry {number} follows {last_number} at offset {offset}")
        seen[log] = offset, max(-1 if number is None else number, last_number or -1)
    return state | {
        "batch": batch,
        "digest": digest,
        "seen": seen,
        "rows": state["rows"] + len(rows),
    }


def main() -> None:
    parameters = json.loads(sys.argv[1])
    path = pathlib.Path(parameters["state"])
    threading.Thread(target=end_with_owner, daemon=True).start()
    java.use()
    import bookies.spark

    spark = session("bookies soak")
    bookies.spark.register(spark)
    while True:
        rows = (
            spark.readStream.format("bookkeeper")
            .option("bookkeeper.metadataServiceUri", parameters["metadata"])
            .option("subscribe", ",".join(parameters["logs"]))
            .option("startingOffsets", "earliest")
            .option("cursor", CURSOR)
            .load()
        )

        def check(batch: Any, number: int) -> None:
            delivered = sorted((row.log, row.offset, bytes(row.value)) for row in batch.collect())
            write_state(path, checked(read_state(path), number, delivered))

        query = (
            rows.select("log", "offset", "value")
            .writeStream.foreachBatch(check)
            .option("checkpointLocation", parameters["checkpoint"])
            .trigger(processingTime=TRIGGER)
            .start()
        )
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001
            print(f"the query ended: {error}", file=sys.stderr)
        state = read_state(path)
        write_state(path, state | {"failures": state["failures"] + 1})
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
