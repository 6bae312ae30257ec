"""Process of a hostile bookie in `bk chaos`. Runs until its standard input ends. See `lab/sim/world/hostile.py`."""

from __future__ import annotations

import argparse
import random
import sys

from bookies.admin.shared.common import run_async
from bookies.admin.shared.lines import read_lines

HOST = "127.0.0.1"


async def live(arguments: argparse.Namespace) -> int:
    from bookies.lab.sim.world.hostile import HostileBookie
    from bookies.metadata.uri import connect
    from bookies.runtime import aio

    runtime = aio.runtime()
    driver = connect(arguments.metadata, runtime, lease_ms=arguments.lease_ms)
    await driver.open()
    try:
        bookie = HostileBookie(
            runtime.network, driver, arguments.name, random.Random(arguments.seed), host=HOST, honesty=0.7
        )
        await bookie.start()
        async for _ in read_lines(sys.stdin.fileno()):
            pass
        await driver.unregister(bookie.bookie_id)
        await bookie.stop()
    finally:
        await driver.close()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--metadata", required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--lease-ms", type=int, required=True)
    arguments = parser.parse_args()
    return run_async(lambda: live(arguments))


if __name__ == "__main__":
    sys.exit(main())
