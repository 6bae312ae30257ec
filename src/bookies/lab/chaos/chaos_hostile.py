"""Process of a hostile bookie in `bk chaos`. Runs until its standard input ends. See `lab/sim/world/hostile.py`."""

from __future__ import annotations

import argparse
import random

from bookies.lab.chaos.chaos_child import input_ends, run_child

HOST = "127.0.0.1"


async def live(arguments: argparse.Namespace) -> int:
    from bookies.lab.sim.world.hostile import HostileBookie
    from bookies.metadata.uri import connect
    from bookies.runtime import aio

    runtime = aio.runtime()
    driver = connect(arguments.metadata, runtime, lease_ms=arguments.lease_ms)
    await driver.open()
    try:
        bookie = HostileBookie(runtime.network, driver, arguments.name, random.Random(arguments.seed), honesty=0.7)
        await bookie.start(HOST)
        await input_ends()
        await driver.unregister(bookie.bookie_id)
        await bookie.stop()
    finally:
        await driver.close()
    return 0


if __name__ == "__main__":
    run_child(live)
