"""The daemon from which Spark forks the Python processes of the tests' session: it has imported what they all need.

Spark ends a process that was idle for a minute, and each new one would import all of it again, which takes most of a
second. A process also collects garbage after each task, which takes a twentieth of a second unless the modules are
exempt. Nothing that is imported may start a thread, which a fork would lose.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys

from pyspark import daemon

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"

if __name__ == "__main__":
    for name in (sys.argv[1], "pandas", "bookies.spark.source"):
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1
    gc.collect()
    gc.freeze()
    daemon.manager()
