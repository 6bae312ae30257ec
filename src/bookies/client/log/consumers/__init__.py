"""Consumers of logs: alone, shared by several processes, and their state."""

from __future__ import annotations

from bookies.client.log.consumers.consumer import LogConsumer
from bookies.client.log.consumers.consumer_states import ConsumerState, MemberState, consumer_states
from bookies.client.log.consumers.shared_consumer import SharedContest, SharedLogConsumer

__all__ = [
    "ConsumerState",
    "LogConsumer",
    "MemberState",
    "SharedContest",
    "SharedLogConsumer",
    "consumer_states",
]
