"""The one error of the command itself. A module of its own, since `bookies.admin.cli` may run as `__main__`."""

from __future__ import annotations


class UsageError(Exception):
    """The command was used wrongly; exit status 2."""
