"""What auto-recovery beside a bookie takes from that bookie."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookies.bookie.server import BookieServer
from bookies.config import BookieConfig, ClientConfig, RecoveryConfig
from bookies.metadata.interface import MetadataDriver
from bookies.replication.daemon.process import BesideBookie, RecoveryProcess
from bookies.runtime import aio


@pytest.mark.parametrize(("own", "used"), [("", "/east/r1"), ("/west/r1", "/west/r1")])
def test_it_is_where_the_bookie_is_unless_its_client_has_a_place(
    own: str, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []

    async def run(process: RecoveryProcess) -> None:
        begun.append(process._participant)

    monkeypatch.setattr(RecoveryProcess, "run", run)
    config = BookieConfig(journal_directories=("j",), ledger_directories=("l",), location="/east/r1", host="10.0.0.1")
    server = SimpleNamespace(config=config, bookie_id="b1", extend_control=lambda verbs: None)
    beside = BesideBookie(RecoveryConfig(), ClientConfig(location=own), lambda: cast(MetadataDriver, None))
    asyncio.run(beside.run(cast(BookieServer, server), aio.runtime()))
    (participant,) = begun
    assert (participant.client_config.location, participant.owner, participant.bookie) == (used, "10.0.0.1", "b1")
