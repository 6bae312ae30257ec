"""How a benchmark ends before its time: one sentence and status 2, or an orderly end after a signal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import NoReturn


def give_up(sentence: str) -> NoReturn:
    """Say why nothing can be measured, and end with exit status 2."""
    print(sentence, file=sys.stderr, flush=True)
    raise SystemExit(2)


def orderly(body: Callable[[], int]) -> int:
    """Exit status of `body`: 130 after SIGINT. SIGTERM raises SystemExit of 143; what is open is closed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return body()
    except KeyboardInterrupt:
        return 130
