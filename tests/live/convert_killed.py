"""`bk bookie convert` that kills its own process, with SIGKILL, when it has called disk and progress so many times.

Arguments: target, number of the call. What it does until then is real: files, RocksDB, locks.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from bookies.admin.verbs.convert import TARGETS, config_of
from bookies.runtime.files import OsDisk
from bookies.storage.rocksdb.rocksdb_port import RocksDatabases


class Mortal:
    """A disk, or anything else, of whose calls one is the last."""

    def __init__(self, each: Any, tick: Any) -> None:
        self._each = each
        self._tick = tick

    def __getattr__(self, name: str) -> Any:
        self._tick()
        return getattr(self._each, name)


def main(target: str, last: int) -> None:
    count = 0

    def tick(*_: object) -> None:
        nonlocal count
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)

    disk = OsDisk()
    conversion = TARGETS[target](Mortal(disk, tick), RocksDatabases(), config_of(disk, "ledgers"), tick)
    conversion.open()
    if conversion.restart():
        conversion.convert(conversion.survey())
    else:
        conversion.finish()
    conversion.close()
    print(count)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
