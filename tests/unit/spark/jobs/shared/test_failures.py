"""What Spark tells of a failure, and the sentence in it."""

from __future__ import annotations

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bookies.errors import BookKeeperError, InvalidArgument
from bookies.spark.jobs.importing import check_parquet
from bookies.spark.jobs.shared.failures import InternalError, explained

TASK = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1
{}

	at org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
"""


def test_a_sentence_of_ours_is_the_one_that_is_told() -> None:
    sentence = "column 'value' is null in 1 of 2 rows: an entry of a raw log is never null"
    found = explained(
        TASK.format(f"KeyError: 1\n\nTraceback (most recent call last):\nbookies.errors.InvalidArgument: {sentence}")
    )
    assert (type(found), str(found)) == (InvalidArgument, sentence)
    found = explained(TASK.format("bookies.errors.LogInUse: ledger 7 is being written"))
    assert (type(found), str(found)) == (BookKeeperError, "ledger 7 is being written")


def test_a_defect_is_told_by_its_own_line() -> None:
    found = explained(TASK.format("KeyError: 'x'"))
    assert (type(found), str(found)) == (InternalError, "KeyError: 'x'")


def test_what_spark_says_is_told_without_the_trace() -> None:
    found = explained(
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///a.csv.  SQLSTATE: KD001\n"
        "\tat org.apache.spark.sql.X\nCaused by: org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT"
        "_SUGGESTION] Malformed records are detected in record parsing: [2,null]. SQLSTATE: 22023\n\tat java.X"
    )
    assert type(found) is BookKeeperError
    assert str(found) == (
        "Spark reports: Encountered error while reading file file:///a.csv; Malformed records are detected in record "
        "parsing: [2,null]"
    )
    assert explained("java.net.ConnectException: no") is None


def test_what_is_no_parquet_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.parquet"
    for content in (b"", b"PAR1 no PAR1"):
        path.write_bytes(content)
        with pytest.raises(InvalidArgument, match=r"a\.parquet is not a Parquet file, or is damaged"):
            check_parquet(str(path))
    pq.write_table(pa.table({"value": ["x"]}), path)
    check_parquet(str(path))
