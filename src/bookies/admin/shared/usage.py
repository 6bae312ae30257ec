"""Error of the command itself. A module of its own, because `bookies.admin.cli` may run as `__main__`."""

from __future__ import annotations


class UsageError(Exception):
    """Wrong use of a command; exit status 2. The message names the option or argument."""
