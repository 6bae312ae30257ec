"""One bookie with many ledgers that are written in turn: Apache's with DbLedgerStorage, ours with either index.

    python -m benchmarks.many_ledgers [--ledgers 100000] [--rounds 10] [--systems apache files rocksdb] [--json FILE]

One connection (v2) sends an entry of 100 bytes to each ledger in turn, `--rounds` times. Then: memory of the bookie, an
orderly stop, which writes what is not yet in entry logs and index, the start after it until the bookie answers an add,
first reads of ledgers that no process has in memory, and the bytes of the ledger directory. The systems run one after
the other on one machine, each with a metadata store of its own.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import signal
import socket
import struct
import sys
import tempfile
import time
from typing import Any

from benchmarks.suite import ending, java, processes
from benchmarks.suite.servers import SETTINGS, ApacheCluster, Bookie, Cluster, OurCluster

from bookies import kernels
from bookies.lab.bench.bench_common import figure_text
from bookies.model import MASTER_KEY_SIZE, DigestType
from bookies.wire import v2

SYSTEMS = ("apache", "files", "rocksdb")
PAYLOAD = bytes(100)
WINDOW = 2_000  # adds in flight
COLD_READS = 1_000
STOP_S = 300.0


class Connection:
    """Requests in the v2 protocol to one bookie."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()

    def send(self, frames: bytes) -> None:
        self._socket.sendall(frames)

    def answer(self) -> bytes:
        """Return the next response without its length. Raises `RuntimeError` unless it is one of success."""
        while len(self._received) < 4 or len(self._received) < 4 + int.from_bytes(self._received[:4], "big"):
            data = self._socket.recv(1 << 16)
            if not data:
                raise RuntimeError("the bookie closed the connection")
            self._received += data
        end = 4 + int.from_bytes(self._received[:4], "big")
        body = bytes(self._received[4:end])
        del self._received[:end]
        if code := int.from_bytes(body[4:8], "big", signed=True):
            raise RuntimeError(f"the bookie answered with code {code}")
        return body

    def close(self) -> None:
        self._socket.close()


def add_frame(ledger_id: int, entry_id: int) -> bytes:
    header = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, len(PAYLOAD) * (entry_id + 1))
    frame = v2.add_head(bytes(MASTER_KEY_SIZE)) + header + kernels.digest(DigestType.CRC32C, b"", header, PAYLOAD)
    frame += PAYLOAD
    return struct.pack(">I", len(frame)) + frame


def write(connection: Connection, ledgers: int, rounds: int) -> float:
    """Send an entry to each ledger in turn, in each round. Return the adds per second."""
    begin = time.perf_counter()
    in_flight = 0
    for entry_id in range(rounds):
        for first in range(0, ledgers, 100):
            batch = range(first, min(first + 100, ledgers))
            connection.send(b"".join(add_frame(1 + ledger_id, entry_id) for ledger_id in batch))
            in_flight += len(batch)
            while in_flight > WINDOW:
                connection.answer()
                in_flight -= 1
    for _ in range(in_flight):
        connection.answer()
    return ledgers * rounds / (time.perf_counter() - begin)


def cold_reads(connection: Connection, ledgers: int, rounds: int) -> dict[str, float]:
    """Return the milliseconds of first reads of ledgers."""
    chance = random.Random(1)
    times = []
    for ledger_id in chance.sample(range(1, ledgers + 1), min(COLD_READS, ledgers)):
        begin = time.perf_counter()
        connection.send(v2.pack_read(ledger_id, chance.randrange(rounds)))
        connection.answer()
        times.append((time.perf_counter() - begin) * 1000)
    times.sort()
    return {"p50, ms": times[len(times) // 2], "p99, ms": times[len(times) * 99 // 100]}


def measure(cluster: Cluster, ledgers: int, rounds: int) -> dict[str, Any]:
    [bookie] = cluster.bookies
    connection = Connection(bookie.port)
    before = processes.usage(bookie.pid).cpu_s
    result: dict[str, Any] = {"adds a second": write(connection, ledgers, rounds)}
    connection.close()
    cpu_s = processes.usage(bookie.pid).cpu_s - before
    result["processor time of an add, us"] = cpu_s * 1e6 / (ledgers * rounds)
    result["memory, MB"] = processes.usage(bookie.pid).resident_mb
    result["orderly stop, s"] = stop(bookie)
    processes.drop_pages([cluster.directory])
    begin = time.perf_counter()
    bookie.start()
    bookie.wait_writable()
    result["start after it, s"] = time.perf_counter() - begin
    connection = Connection(bookie.port)
    result |= {
        f"first read of a ledger, {name}": value for name, value in cold_reads(connection, ledgers, rounds).items()
    }
    connection.close()
    files = [path for path in (bookie.home / "ledgers").rglob("*") if path.is_file()]
    result["files"] = len(files)
    result["ledger directory, MB"] = sum(path.stat().st_blocks for path in files) * 512 / 1e6
    return result


def stop(bookie: Bookie) -> float:
    """Stop it in an orderly way. Return the seconds."""
    assert bookie.process is not None
    begin = time.perf_counter()
    bookie.process.send_signal(signal.SIGTERM)
    bookie.process.wait(STOP_S)
    bookie.process = None
    return time.perf_counter() - begin


def cluster_of(system: str, directory: pathlib.Path) -> Cluster:
    if system == "apache":
        return ApacheCluster(directory, 1, SETTINGS["RocksDB"])
    return OurCluster(directory, 1, zookeeper=False, settings={"ledger_index": system})


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=10, help="entries of each ledger")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file too")
    arguments = parser.parse_args()
    if "apache" in arguments.systems:
        java.prepare()
    results: dict[str, dict[str, Any]] = {}
    for system in arguments.systems:
        with tempfile.TemporaryDirectory(prefix="many-ledgers-") as directory:
            cluster = cluster_of(system, pathlib.Path(directory) / "cluster")
            try:
                cluster.start()
                results[system] = measure(cluster, arguments.ledgers, arguments.rounds)
                print(system, {name: figure_text(value) for name, value in results[system].items()}, flush=True)
            finally:
                cluster.stop()
    print(f"\n{'':32}" + "".join(f"{system:>14}" for system in results))
    for name in next(iter(results.values())):
        print(f"{name:32}" + "".join(f"{figure_text(figures[name]):>14}" for figures in results.values()))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(ending.orderly(main))
