"""What holds for all tests."""

from __future__ import annotations

import signal

from hypothesis import settings

# How long an example takes says more about what else the machine is doing than about the code.
settings.register_profile("bookies", deadline=None)
settings.load_profile("bookies")

# What a shell starts in the background ignores SIGINT, and what `nohup` starts SIGHUP; so would every process that a
# test ends so. These tests go on being deaf, and their processes are not.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)
