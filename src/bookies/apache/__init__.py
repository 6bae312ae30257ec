"""Apache's configuration files and commands, in our words: for who has a cluster of Apache's and its files.

`client_options("bk_client.conf")` makes settings of our client out of Apache's; `bk bookie run --conf` does the same
with `bk_server.conf`. The tables say for every key what becomes of it; docs/reference/apache-config.md is made of them.
Nothing is ignored in silence: what differs is said in `notices`. Source: experience 4.
"""

from __future__ import annotations

from bookies.apache.client import ClientOptions, client_options
from bookies.apache.table import Level, Notice

__all__ = ["ClientOptions", "Level", "Notice", "client_options"]
