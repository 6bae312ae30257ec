"""Contexts: clusters that a user has given a name, in a file under the user's configuration directory.

A command works on the first of these: its option `--metadata` or `--server`, the variables BK_METADATA and BK_SERVER,
the context named by BK_CONTEXT, the nearest `bk-data` directory, the context in use. So a command in the directory of a
local cluster never reaches another one by accident.

The file has no secrets. A token is in a file of its own, which only its owner may read.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from bookies.admin.shared.usage import UsageError


class Context(NamedTuple):
    """A cluster: by its metadata store, or by an HTTP server. Empty: not given. `authority`, `token_file`: paths."""

    metadata: str = ""
    server: str = ""
    authority: str = ""
    token_file: str = ""

    @property
    def place(self) -> str:
        """Return where the cluster is."""
        return self.metadata or self.server


class Contexts:
    """The contexts by name. `used`: the one in use; empty: none."""

    def __init__(self, used: str = "", by_name: dict[str, Context] | None = None) -> None:
        self.used = used
        self.by_name = by_name or {}

    def find(self, name: str) -> Context:
        """Return a context. Raises `UsageError`."""
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise UsageError(f"there is no context {name!r}: `bk context add` adds one; there are: {known}")
        return self.by_name[name]


def directory() -> str:
    """Return the user's configuration directory."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "bookies")


def load() -> Contexts:
    """Read the contexts; none if there is no file. Raises `UsageError`."""
    path = os.path.join(directory(), "contexts.json")
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        by_name = {str(name): Context(**values) for name, values in content["contexts"].items()}
        return Contexts(str(content["used"]), by_name)
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; repair it, or delete it and add them again") from None


def save(contexts: Contexts) -> None:
    """Write the contexts."""
    named = {name: context._asdict() for name, context in sorted(contexts.by_name.items())}
    text = json.dumps({"used": contexts.used, "contexts": named}, indent=1)
    _write_private("contexts.json", f"{text}\n")


def save_token(name: str, token: str) -> str:
    """Write the token of a context to a file of its own, and return its path."""
    return _write_private(f"{name}.token", f"{token}\n")


def _write_private(name: str, text: str) -> str:
    from bookies.runtime.files import OsDisk

    os.makedirs(directory(), mode=0o700, exist_ok=True)
    path = os.path.join(directory(), name)
    OsDisk().replace_bytes(path, text.encode(), is_private=True)
    return path


def remove(name: str) -> None:
    """Remove a context and the token that was stored for it. Raises `UsageError`."""
    contexts = load()
    contexts.find(name)
    del contexts.by_name[name]
    if contexts.used == name:
        contexts.used = ""
    save(contexts)
    own = os.path.join(directory(), f"{name}.token")
    if os.path.exists(own):
        os.unlink(own)


def active(*, has_data_directory: bool) -> tuple[str, Context] | None:
    """Return the context that commands use, with its name; None: none. Raises `UsageError`."""
    contexts = load()
    name = os.environ.get("BK_CONTEXT") or ("" if has_data_directory else contexts.used)
    return (name, contexts.find(name)) if name else None


def check_private(path: str) -> str:
    """Return the path of a file with a secret. Raises `UsageError` if others may read it."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise UsageError(f"the token file {path} cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise UsageError(f"others may read the token in {path}: chmod 600 {path}")
    return path
