"""Fleet jobs: look at, or change, all ledgers of a cluster with as many machines as Spark has.

Each is a function `job(spark, config) -> DataFrame`, and a command `bk spark NAME`. See `jobs/common.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

# name -> (module with OPTIONS, job and report; one line of help)
JOBS: Mapping[str, tuple[str, str]] = {
    "scrub": ("bookies.spark.jobs.scrub", "verify every replica of every entry; findings and a repair plan"),
    "repair": ("bookies.spark.jobs.repair", "carry out a repair plan of a scrub"),
    "reconcile": ("bookies.spark.jobs.reconcile", "what does not fit together: ledgers, logs, bookies"),
    "usage": ("bookies.spark.jobs.usage", "where the bytes are: by label, log, age, bookie; skew; largest ledgers"),
    "import": ("bookies.spark.jobs.importing", "files of JSON lines, text, CSV or Parquet into a log, exactly once"),
    "export": ("bookies.spark.jobs.exporting", "a log or ledgers to files of Parquet, JSON lines, text or CSV"),
    "offload": ("bookies.spark.jobs.offload", "copy sealed ledgers to Parquet files; later let bookies forget them"),
    "restore": (
        "bookies.spark.jobs.restore",
        "bring offloaded ledgers that bookies may have forgotten back to bookies",
    ),
    "migrate": ("bookies.spark.jobs.migrate", "copy ledgers and logs to another cluster, and move over to it"),
    "whatif": ("bookies.spark.jobs.whatif", "what is lost when bookies or racks die, and how long repair takes"),
}
