"""Ledgers and logs that jobs copy to files or to another cluster, and their content before and after."""

from __future__ import annotations

import random

import bookies as bk

PASSWORD = b"secret"


def sealed_ledgers(store: bk.blocking.Client, seed: int) -> list[int]:
    """Sealed ledgers: replicated, striped, of one replica, empty; entries of 0 bytes to 1 MiB."""
    rng = random.Random(seed)
    ids = []
    for (ensemble, write_quorum), digest, sizes in (
        ((3, 3), "crc32c", [0, 1, 70_000]),
        ((3, 2), "hmac", [rng.randrange(300) for _ in range(200)]),
        ((1, 1), "none", [1 << 20] * 3),
        ((2, 2), "crc32", []),
    ):
        with store.create(
            ensemble=ensemble, write_quorum=write_quorum, digest=digest, password=PASSWORD, labels={"owner": "me"}
        ) as writer:
            for size in sizes:
                writer.append(rng.randbytes(size))
            ids.append(writer.ledger_id)
    return ids


def content(store: bk.blocking.Client, ledger_id: int) -> list[tuple[bytes, int]]:
    with store.open(ledger_id, password=PASSWORD) as reader:
        return [(entry.payload, entry.length) for entry in reader.read()]


def log_values(store: bk.blocking.Client, name: str) -> list[bytes]:
    with store.log(name).open() as reader:
        return [entry.payload for entry in reader.read()]
