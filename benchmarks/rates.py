"""Ten users at their rates, and what another user notices: `python -m benchmarks.rates [--pairs 5] [--seconds 8]`.

Three bookies with a file of users. Ten users append 1,000-byte entries, in one process of their own; in turn they stay
below their rates, and append as fast as their bookies let them. Meanwhile another user without a rate appends entries
of 100 bytes one by one. A pair is one turn of each kind; the ratio is of the p99 of the other user's appends.
"""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable

from benchmarks.suite.limits import percentile

import bookies
from bookies import LedgerWriter
from bookies.admin.cluster import LocalCluster

USERS = 10
RATE = 200_000  # bytes in a second, of each of them at each bookie
SIZE, OTHER_SIZE = 1_000, 100
CALM = 0.5  # share of the rate below the limit
WINDOW = 100  # entries of a user that wait for their acknowledgement
WARM_UP_S = 2.0  # of the ten, before the other user begins
QUORUMS = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2}


def write_users(directory: pathlib.Path) -> pathlib.Path:
    """Write the file of users, and one file for each user's client."""
    path = directory / "users"
    for name in [*(f"u{number}" for number in range(USERS)), "other"]:
        command = [sys.executable, "-m", "bookies.admin.cli", "token", "add", name, "--role", "writer", "--sasl"]
        password = subprocess.run([*command, "--users", path], check=True, capture_output=True, text=True).stdout
        secret = directory / f"{name}.toml"
        secret.touch(mode=0o600)
        secret.write_text(f'username = "{name}"\npassword = "{password.split()[-1]}"\nmechanism = "SCRAM-SHA-256"\n')
    with path.open("a") as users:
        users.writelines(f"u{number} limit bytes={RATE}\n" for number in range(USERS))
    return path


async def append_for(uri: str, secret: str, seconds: float, append: Callable[[LedgerWriter], Awaitable[int]]) -> int:
    """Call `append`, which returns a count, for so many seconds; return the sum. Raises the error of an append."""
    end, count = time.monotonic() + seconds, 0
    async with bookies.connect(uri, sasl_file=secret) as client, client.create(**QUORUMS) as ledger:
        while time.monotonic() < end:
            count += await append(ledger)
    return count


async def load(uri: str, directory: str, seconds: float, *, is_calm: bool) -> int:
    """Append as the ten users do; return the number of entries."""

    async def append(ledger: LedgerWriter) -> int:
        count = round(RATE * CALM / SIZE / 10) if is_calm else WINDOW
        await ledger.append_many([bytes(SIZE)] * count)
        if is_calm:
            await asyncio.sleep(0.1)
        return count

    return sum(
        await asyncio.gather(
            *(append_for(uri, f"{directory}/u{number}.toml", seconds, append) for number in range(USERS))
        )
    )


async def other(uri: str, secret: str, seconds: float) -> list[float]:
    """Append single entries; return the milliseconds of each."""
    times: list[float] = []

    async def append(ledger: LedgerWriter) -> int:
        begin = time.perf_counter()
        await ledger.append(bytes(OTHER_SIZE))
        times.append((time.perf_counter() - begin) * 1000)
        return 1

    await append_for(uri, secret, seconds, append)
    return times


def turn(uri: str, directory: pathlib.Path, seconds: float, kind: str) -> tuple[float, float, float]:
    """Return p50 and p99 of the other user in ms, and the entries per second of the ten."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.rates",
        "--load",
        kind,
        uri,
        str(directory),
        str(seconds + WARM_UP_S),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(WARM_UP_S)
        times = asyncio.run(other(uri, str(directory / "other.toml"), seconds))
        count = int(process.communicate()[0])
    return percentile(times, 0.5), percentile(times, 0.99), count / (seconds + WARM_UP_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a turn")
    parser.add_argument("--load", nargs=4, metavar=("KIND", "URI", "DIRECTORY", "SECONDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        kind, uri, directory, seconds = arguments.load
        print(asyncio.run(load(uri, directory, float(seconds), is_calm=kind == "below")))
        return 0
    ratios = []
    with tempfile.TemporaryDirectory(prefix="bk-rates-") as name:
        directory = pathlib.Path(name)
        settings = {"authentication": "sasl", "users_file": str(write_users(directory))}
        with LocalCluster(directory / "cluster", 3, settings=settings) as cluster:
            print("| pair | below: p50, p99, ms | entries/s | at the rates: p50, p99, ms | entries/s | p99 ratio |")
            print("|---:|---:|---:|---:|---:|---:|")
            for pair in range(1, arguments.pairs + 1):
                below = turn(cluster.metadata_uri, directory, arguments.seconds, "below")
                at = turn(cluster.metadata_uri, directory, arguments.seconds, "at")
                ratios.append(at[1] / below[1])
                print(
                    f"| {pair} | {below[0]:.2f}, {below[1]:.2f} | {below[2]:,.0f} | {at[0]:.2f}, {at[1]:.2f} | "
                    f"{at[2]:,.0f} | {ratios[-1]:.2f} |",
                    flush=True,
                )
    print(f"\nmedian of the ratios: {statistics.median(ratios):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
