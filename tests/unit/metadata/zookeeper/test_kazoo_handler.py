"""What kazoo's thread calls itself, and how it waits for sockets."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("kazoo")

from bookies.metadata.zookeeper.kazoo_handler import Handler


def test_completions_and_watches_come_in_the_order_in_which_they_are_read() -> None:
    """On the thread that reads, also while kazoo's own threads run."""
    handler = Handler()
    handler.start()
    try:
        seen: list[tuple[str, int]] = []

        def note(what: str) -> None:
            seen.append((what, threading.get_ident()))

        def read() -> None:
            for number in range(20):
                result = handler.async_result()
                result.rawlink(lambda _, number=number: note(f"answer {number}"))
                handler.dispatch_callback(SimpleNamespace(func=note, args=(f"watch {number}",)))
                result.set(number)
                late = handler.async_result()
                late.set_exception(ValueError())
                late.rawlink(lambda result, number=number: note(f"{type(result.exception).__name__} {number}"))

        reader = threading.Thread(target=read)
        reader.start()
        reader.join()
        assert [what for what, _ in seen] == [
            f"{what} {number}" for number in range(20) for what in ("watch", "answer", "ValueError")
        ]
        assert {thread for _, thread in seen} == {reader.ident}
    finally:
        handler.stop()


def test_select() -> None:
    handler = Handler()
    one, other = socket.socketpair()
    with one, other:
        assert handler.select([one], [], [], 0) == ([], [], [])
        assert handler.select([one], [one, other], [], 5) == ([], [one, other], [])
        other.send(b"x")
        assert handler.select([other, one], [], [], 5) == ([one], [], [])
        assert handler.select([one], [], []) == ([one], [], [])
        one.recv(1)
        assert handler.select([one], [], [], 0.001) == ([], [], [])  # a millisecond, and not none at all
        other.close()
        assert handler.select([one], [], [], 5) == ([one], [], [])
