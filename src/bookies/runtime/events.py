"""Log lines as events with fields; repeats are limited and counted.

`events.info("bookie.ready", port=3181)` logs `bookie.ready port=3181` through Python's `logging`, with the fields in
the record's `fields` attribute for formatters that write JSON. Event names are dotted, fields are facts.
"""

from __future__ import annotations

import json
import logging
import os

from bookies.runtime.ports import Clock

REPEATS_MAX = 5  # lines of one event within a window; more are counted, not written
WINDOW_S = 10.0


class Events:
    """One component's events, on the logger `bookies.<component>`. `is_limited`: repeats are counted, not written."""

    def __init__(self, component: str, clock: Clock, *, is_limited: bool = True) -> None:
        self._is_limited = is_limited
        self._logger = logging.getLogger(f"bookies.{component}")
        self._clock = clock
        # event -> start of its window, number of lines requested in it
        self._windows: dict[str, tuple[float, int]] = {}

    def info(self, event: str, **fields: object) -> None:
        self._log(logging.INFO, event, fields, None)

    def warning(self, event: str, *, error: BaseException | None = None, **fields: object) -> None:
        """Log a warning. The type and text of `error` become the fields `error` and `reason`."""
        self._log(logging.WARNING, event, fields, error)

    def error(self, event: str, *, error: BaseException | None = None, **fields: object) -> None:
        """Log an error, like `warning`. A programming error (no `BookKeeperError`, no `OSError`) adds its traceback."""
        self._log(logging.ERROR, event, fields, error)

    def _log(self, level: int, event: str, fields: dict[str, object], error: BaseException | None) -> None:
        if not self._logger.isEnabledFor(level):
            return
        now = self._clock.monotonic()
        start, count = self._windows.get(event, (now, 0))
        if now - start >= WINDOW_S:
            if count > REPEATS_MAX and self._is_limited:
                fields = {**fields, "suppressed": count - REPEATS_MAX}
            start, count = now, 0
        self._windows[event] = (start, count + 1)
        if count >= REPEATS_MAX and self._is_limited:
            return
        if error is not None:
            fields = {**fields, "error": type(error).__name__, "reason": str(error)}
        is_known = error is None or isinstance(error, OSError) or hasattr(error, "retriable")
        trace = None if is_known or level < logging.ERROR else error
        text = " ".join([event, *(f"{name}={_word(value)}" for name, value in fields.items())])
        self._logger.log(level, "%s", text, exc_info=trace, extra={"event": event, "fields": fields})


def _word(value: object) -> str:
    """Return a value without spaces as it is, anything else quoted, so that a line can be split again."""
    text = str(value)
    return text if text and not any(character in text for character in ' "=\n') else json.dumps(text)


PRIORITIES = {logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6, logging.DEBUG: 7}  # of syslog


def is_journal(descriptor: int) -> bool:
    """Report whether a descriptor is the stream that systemd gave this process to its journal."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def prioritized(level: int, text: str) -> str:
    """Return a text for systemd's journal: each of its lines begins with its priority, such as `<4>`."""
    priority = next((PRIORITIES[known] for known in PRIORITIES if level >= known), 7)
    return "\n".join(f"<{priority}>{line}" for line in text.splitlines())


class JournalFormatter(logging.Formatter):
    """Lines of another formatter, for systemd's journal."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        return prioritized(record.levelno, self._inner.format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `ms` (since 1970), `level`, `component`, `event` and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "component": record.name.removeprefix("bookies."),
            "event": getattr(record, "event", record.getMessage()),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
