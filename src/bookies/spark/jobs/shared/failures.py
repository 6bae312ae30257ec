"""What went wrong, out of what Spark tells of it: a sentence, ours from a task or Spark's own, in place of a trace."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from bookies import errors
from bookies.errors import BookKeeperError, ConfigError, InvalidArgument

_OURS = re.compile(r"^\s*bookies\.errors\.(\w+): (.+)$", re.MULTILINE)
_PYTHON = re.compile(
    r"^\s*((?!org\.|java\.|scala\.|py4j\.|pyspark\.)[A-Za-z_][\w.]*(?:Error|Exception)\b(?:: .*)?)$", re.MULTILINE
)
_SPARK = re.compile(r"\[[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*\] (.+?)\s*(?:SQLSTATE: \w+)?$", re.MULTILINE)


class InternalError(Exception):
    """A task has met a defect: the line that says which."""


def explained(text: str) -> Exception | None:
    """What a text of Spark's about a failure comes to; None: nothing that is known.

    Our own errors, of tasks and of the data source, come back with their sentence: `InvalidArgument`, or
    `BookKeeperError`. So do Spark's, about files that it cannot read and the like. Another exception of Python code is
    an `InternalError`.
    """
    if ours := _OURS.findall(text):
        name, said = ours[-1]
        found = getattr(errors, name, BookKeeperError)
        is_usage = isinstance(found, type) and issubclass(found, (ConfigError, InvalidArgument))
        return InvalidArgument(said) if is_usage else BookKeeperError(said)
    if "Traceback (most recent call last)" in text and (python := _PYTHON.findall(text)):
        return InternalError(python[-1])
    if spark := list(dict.fromkeys(said.rstrip(". ") for said in _SPARK.findall(text))):
        # The first one says what Spark was about, the last one, a cause of a cause, why it did not succeed.
        return BookKeeperError("Spark says: " + "; ".join(dict.fromkeys((spark[0], spark[-1]))))
    return None


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Raise what is known in place of Spark's errors; inside a session: without it these have lost their text.

    That text is a note of the exception, for whoever wants the trace.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        made = explained(text) or InternalError(f"{type(error).__name__}: {text.partition(chr(10))[0]}")
        made.add_note(text)
        raise made from None
