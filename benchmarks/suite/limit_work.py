"""What processes do for `benchmarks.suite.limits`. It starts fast: nothing of this package is imported."""

from __future__ import annotations

import json
import os
import socket
import sys
import time

ROOM = 64 << 20  # bytes of a file that is written to
FAILED = 3  # exit status; the number of the error is all that is said


def sync(size: int, seconds: float, path: str) -> None:
    """Write `size` bytes and sync them, over and over; print the seconds of each."""
    block, times = os.urandom(size), list[float]()
    file = os.open(path, os.O_WRONLY)
    end = time.perf_counter() + seconds
    offset = 0
    try:
        while (started := time.perf_counter()) < end:
            os.pwrite(file, block, offset)
            os.fdatasync(file)
            times.append(time.perf_counter() - started)
            offset = (offset + size) % (ROOM - size)
    except OSError as error:
        print(error.errno)
        sys.exit(FAILED)
    print(json.dumps(times))


def drain(port: int) -> None:
    """Receive until there is no more."""
    buffer = bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while connection.recv_into(buffer):
            pass


if __name__ == "__main__":
    if sys.argv[1] == "sync":
        sync(int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
    else:
        drain(int(sys.argv[2]))
