"""Apache's configuration files and commands, translated to this project's, for clusters that move from Apache.

`client_options("bk_client.conf")` converts Apache's settings to those of our client; `bk bookie run --conf` does the
same with `bk_server.conf`. The tables list what becomes of every key; docs/reference/apache-config.md is generated from
them. No key is silently ignored: `notices` report every difference.
"""

from __future__ import annotations

from bookies.apache.client import ClientOptions, client_options
from bookies.apache.table import Level, Notice

__all__ = ["ClientOptions", "Level", "Notice", "client_options"]
