"""Reports to a service manager: what is sent, and to which socket."""

from __future__ import annotations

import asyncio
import pathlib
import socket

import pytest

from bookies.runtime.service_manager import ServiceManager, service_manager


def test_a_process_reports_its_start_its_life_and_its_stop() -> None:
    sent: list[str] = []

    async def main() -> None:
        is_watched = asyncio.Event()

        def send(text: str) -> None:
            sent.append(text)
            if sent.count("WATCHDOG=1") == 3:
                is_watched.set()

        manager = ServiceManager(send, watchdog_s=0.003)
        async with manager.alive():
            await asyncio.sleep(0)
            assert sent == ["EXTEND_TIMEOUT_USEC=120000000", "WATCHDOG=1"]
            with manager.serving("serves on b1:3181"):
                assert sent[-1] == "READY=1\nSTATUS=serves on b1:3181"
                begin = len(sent)
                await is_watched.wait()
                assert set(sent[begin:]) == {"WATCHDOG=1"}
            assert sent[-1] == "STOPPING=1\nSTATUS=stopping"

    asyncio.run(main())


def test_without_a_manager_nothing_happens() -> None:
    async def main() -> None:
        manager = service_manager({})
        async with manager.alive():
            with manager.serving("x"):
                assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


@pytest.mark.parametrize("is_abstract", [False, True])
def test_the_socket_may_have_a_path_or_an_abstract_name(tmp_path: pathlib.Path, is_abstract: bool) -> None:
    name = f"{'@' if is_abstract else ''}{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name.replace("@", "\0") if is_abstract else name)
        with service_manager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).serving("x"):
            assert receiver.recv(100) == b"READY=1\nSTATUS=x"


def test_a_socket_that_is_gone_stops_no_process(tmp_path: pathlib.Path) -> None:
    manager = service_manager({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    with manager.serving("x"):
        reached = True
    assert reached
