"""Fleet jobs: check or change all ledgers of a cluster, in parallel on Spark.

Each is a function `job(spark, config) -> DataFrame`, and a command `bk spark NAME`. See `jobs/shared/common.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

# name -> (module with OPTIONS, job and report; one line of help)
JOBS: Mapping[str, tuple[str, str]] = {
    "scrub": ("bookies.spark.jobs.scrub", "verify every replica of every entry; findings and a repair plan"),
    "repair": ("bookies.spark.jobs.repair", "carry out a repair plan of a scrub"),
    "reconcile": ("bookies.spark.jobs.reconcile", "find inconsistencies between ledgers, logs and bookies"),
    "usage": (
        "bookies.spark.jobs.usage",
        "report where the bytes are: by label, log, age, bookie; skew; largest ledgers",
    ),
    "import": (
        "bookies.spark.jobs.importing",
        "import files of JSON lines, text, CSV or Parquet into a log, exactly once",
    ),
    "export": ("bookies.spark.jobs.exporting", "export a log or ledgers to files of Parquet, JSON lines, text or CSV"),
    "compact": ("bookies.spark.jobs.compacting", "keep only the last record of each key of a large log"),
    "offload": ("bookies.spark.jobs.offload", "copy sealed ledgers to Parquet files; later let bookies forget them"),
    "restore": (
        "bookies.spark.jobs.restore",
        "copy offloaded ledgers, which bookies may have forgotten, back to bookies",
    ),
    "migrate": ("bookies.spark.jobs.migrate", "copy ledgers and logs to another cluster, and cut over to it"),
    "backup": ("bookies.spark.jobs.backup", "back up metadata and sealed ledgers of a cluster, incrementally"),
    "verify": ("bookies.spark.jobs.verify", "compare a backup, or a restored cluster, with the backup's manifest"),
    "restore-cluster": ("bookies.spark.jobs.restore_cluster", "restore a backup into an empty cluster"),
    "whatif": (
        "bookies.spark.jobs.whatif",
        "predict what is lost when bookies or racks fail, and how long repair takes",
    ),
}
