"""Conversion of Spark's failures to a sentence: our own from a task, or Spark's, in place of a traceback."""

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
    """Defect that a task has met. The message is the line that names the exception."""


def explained(text: str) -> Exception | None:
    """Return the error that a text of Spark's describes; None: the text is not recognised.

    Our own errors, of tasks and of the data source, keep their sentence: `InvalidArgument`, or `BookKeeperError`. So do
    Spark's, such as about files that it cannot read. Another Python exception is an `InternalError`.
    """
    if ours := _OURS.findall(text):
        name, sentence = ours[-1]
        error_class = getattr(errors, name, BookKeeperError)
        is_usage = isinstance(error_class, type) and issubclass(error_class, (ConfigError, InvalidArgument))
        return InvalidArgument(sentence) if is_usage else BookKeeperError(sentence)
    if "Traceback (most recent call last)" in text and (python := _PYTHON.findall(text)):
        return InternalError(python[-1])
    if spark := list(dict.fromkeys(sentence.rstrip(". ") for sentence in _SPARK.findall(text))):
        # The first sentence names Spark's action. The last one, the innermost cause, names the reason.
        return BookKeeperError("Spark reports: " + "; ".join(dict.fromkeys((spark[0], spark[-1]))))
    return None


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Raise the known error in place of Spark's. Must be inside a session: afterwards Spark's errors have no text.

    Spark's text is a note of the raised exception.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # An interrupted call can break its connection to Java.
            raise error.__context__ from None
        text = str(error)
        plain_error = explained(text) or InternalError(f"{type(error).__name__}: {text.partition(chr(10))[0]}")
        plain_error.add_note(text)
        raise plain_error from None
