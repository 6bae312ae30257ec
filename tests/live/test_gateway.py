"""Gateways as processes: killed in the middle of appends, flooded, read slowly, and asked by curl."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import bookies
from bookies.admin.cluster import LocalCluster
from bookies.client.turns.lease import TTL_S

pytestmark = pytest.mark.live

API = "/api/v1"
FAST = {"journal_preallocate_size": 1 << 20, "index_cache_size": 1 << 20, "write_cache_size": 4 << 20}
SHAPE = {"ensemble": 2, "write_quorum": 2, "ack_quorum": 1}
PATIENCE_S = 120
WRITERS, NUMBERS = 3, 120
ENDED = (OSError, http.client.HTTPException)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("gateway") / "bk-data", 2, lease_ms=2000, settings=FAST)
    cluster.start()
    yield cluster
    cluster.stop()


class Gateway:
    """One process, which can be killed and started again, and a user with every right."""

    def __init__(self, cluster: LocalCluster, folder: pathlib.Path, *settings: str) -> None:
        self.users = folder / "users"
        self._settings = settings
        self._uri = cluster.metadata_uri
        if not self.users.exists():
            words = ("token", "add", "root", "--role", "administrator", "--users", str(self.users), "--json")
            done = subprocess.run(
                [sys.executable, "-m", "bookies", *words], capture_output=True, check=True, timeout=60
            )
            (folder / "token").write_text(json.loads(done.stdout)["token"])
        self.token = (folder / "token").read_text()
        self.start()

    def start(self) -> None:
        words = ("gateway", "run", "--metadata", self._uri, "--users", str(self.users), "--port", "0", *self._settings)
        self.process = subprocess.Popen([sys.executable, "-m", "bookies", *words], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        host, port = self.process.stdout.readline().strip().rpartition("//")[2].split(":")
        self.address = host, int(port)

    def call(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {self.token}", **names})
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    def append(self, log: str, value: bytes, writer: str, number: int) -> tuple[int, dict[str, str], bytes]:
        path = f"{API}/logs/{log}/entries"
        return self.call("POST", path, value, Bk_Writer=writer, Bk_Sequence=str(number))

    def create(self, log: str) -> None:
        status, _, body = self.call("PUT", f"{API}/logs/{log}", json.dumps(SHAPE).encode())
        assert status in (200, 201), body

    def metric(self, name: str) -> float:
        text = self.call("GET", "/metrics")[2].decode()
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> int:
        """Ask it to end; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path


def leading(cluster: LocalCluster, gateways: list[Gateway], log: str) -> Gateway | None:
    """Return the gateway that has the turn to lead a log."""
    with bookies.blocking.connect(cluster.metadata_uri) as store:
        leader = store.log(log).leader()
    return next((gateway for gateway in gateways if gateway.url == leader), None)


def write(gateways: list[Gateway], name: str, acknowledged: dict[tuple[str, int], str]) -> None:
    """Append numbers, one after the other, each until it is acknowledged, as a client that was told to repeat.

    It goes to any gateway, and from there to the one that leads.
    """
    choice = random.Random(name)
    deadline = time.monotonic() + PATIENCE_S
    for number in range(NUMBERS):
        while True:
            assert time.monotonic() < deadline, f"{name} has come to {number} only"
            gateway = choice.choice(gateways)
            with contextlib.suppress(*ENDED, ValueError):
                value = b"%s/%d" % (name.encode(), number)
                status, headers, body = gateway.append("killed", value, name, number)
                if status == 307:
                    location = headers["location"]  # may be that of a process which was killed
                    for other in [other for other in gateways if location.startswith(f"{other.url}/")]:
                        status, _, body = other.append("killed", value, name, number)
                if status in (200, 201):
                    acknowledged[name, number] = json.loads(body)["first"]
                    break
                assert status in (307, 503, 504), body
            time.sleep(0.02)


@pytest.mark.long
def test_each_number_is_stored_once_although_gateways_are_killed(cluster: LocalCluster, folder: pathlib.Path) -> None:
    gateways = [Gateway(cluster, folder), Gateway(cluster, folder)]
    gateways[0].create("killed")
    acknowledged: dict[tuple[str, int], str] = {}
    threads = [threading.Thread(target=write, args=(gateways, f"w{number}", acknowledged)) for number in range(WRITERS)]
    try:
        for thread in threads:
            thread.start()
        for share in (0.2, 0.4, 0.6, 0.8):
            while len(acknowledged) < share * WRITERS * NUMBERS and any(thread.is_alive() for thread in threads):
                time.sleep(0.005)
            while (leader := leading(cluster, gateways, "killed")) is None:
                assert any(thread.is_alive() for thread in threads)
                time.sleep(0.05)
            leader.kill()  # between the append and its answer, for some requests
            leader.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(acknowledged) == WRITERS * NUMBERS
        assert [gateway.stop() for gateway in gateways] == [0, 0]
    finally:
        for gateway in gateways:
            gateway.kill()
    with bookies.blocking.connect(cluster.metadata_uri) as store, store.log("killed").open() as log:
        entries = list(log.read())
    values = [entry.payload[entry.payload.rindex(b"w") :] for entry in entries]
    for name in (f"w{number}" for number in range(WRITERS)):
        mine = [value for value in values if value.startswith(name.encode())]
        assert mine == [b"%s/%d" % (name.encode(), number) for number in range(NUMBERS)]
    at = {value.decode(): str(entry.position) for value, entry in zip(values, entries, strict=True)}
    wrong = {
        key: first for key, first in acknowledged.items() if first is not None and at["/".join(map(str, key))] != first
    }
    assert not wrong


def test_a_gateway_continues_within_the_ttl_of_the_killed_leader(cluster: LocalCluster, folder: pathlib.Path) -> None:
    first, second = gateways = [Gateway(cluster, folder), Gateway(cluster, folder)]
    try:
        first.create("turns")
        assert first.append("turns", b"0", "w", 0)[0] == 201
        for _ in range(3):
            status, headers, _ = second.append("turns", b"1", "w", 1)
            assert (status, headers["location"]) == (307, f"{first.url}{API}/logs/turns/entries")
        assert first.append("turns", b"1", "w", 1)[0] == 201
        first.kill()
        killed_s = time.monotonic()
        while (status := second.append("turns", b"1", "w", 1)[0]) == 307:
            time.sleep(0.1)
        assert status == 200  # it is stored already
        assert time.monotonic() - killed_s < TTL_S + 5.0  # recovery, on a busy machine
        assert second.append("turns", b"2", "w", 2)[0] == 201
        first.start()
        assert first.append("turns", b"2", "w", 2)[0] == 307
        second.process.send_signal(signal.SIGSTOP)
        while first.append("turns", b"3", "w", 3)[0] == 307:
            time.sleep(0.1)
        second.process.send_signal(signal.SIGCONT)
        second.append("turns", b"3", "w", 3)  # it may not know yet that it was followed
        status, headers, _ = second.append("turns", b"3", "w", 3)
        assert (status, headers["location"]) == (307, f"{first.url}{API}/logs/turns/entries")
        assert second.stop() == 0
        assert first.append("turns", b"4", "w", 4)[0] == 201
        page = json.loads(first.call("GET", f"{API}/logs/turns/entries")[2])
        assert [row["text"] for row in page["entries"]] == list("01234")
    finally:
        for gateway in gateways:
            gateway.kill()


@pytest.fixture
def gateway(cluster: LocalCluster, folder: pathlib.Path) -> Iterator[Gateway]:
    gateway = Gateway(cluster, folder)
    yield gateway
    gateway.kill()


def test_a_tail_that_is_not_read_costs_no_memory_and_others_go_on(gateway: Gateway) -> None:
    gateway.create("slow")
    first = json.loads(gateway.call("POST", f"{API}/logs/slow/entries", b"first")[2])["first"]
    tail = socket.create_connection(gateway.address)
    tail.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 10)
    head = f"GET {API}/logs/slow/tail?from={first} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {gateway.token}"
    tail.sendall(f"{head}\r\n\r\n".encode())
    while b"first" not in tail.recv(1024):
        pass
    body = b"x" * (1 << 20)
    for _ in range(8):
        assert gateway.call("POST", f"{API}/logs/slow/entries", body)[0] == 201
    before = gateway.metric("process_resident_memory_bytes")
    for _ in range(48):
        assert gateway.call("POST", f"{API}/logs/slow/entries", body)[0] == 201
    grown = gateway.metric("process_resident_memory_bytes") - before
    assert grown < 24 << 20, f"{grown:,.0f} bytes more for 48 MiB that the tail does not read"
    tail.close()


def raw(gateway: Gateway, data: bytes) -> bytes:
    """Send bytes, and return what comes until the end of the connection."""
    with socket.create_connection(gateway.address, timeout=60) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(data)
        received = b""
        with contextlib.suppress(OSError):
            while part := connection.recv(65536):
                received += part
        return received


def test_malformed_and_huge_requests_leave_it_as_it_was(gateway: Gateway) -> None:
    gateway.create("hostile")
    head = f"POST {API}/logs/hostile/entries HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {gateway.token}\r\n"
    before = gateway.metric("process_resident_memory_bytes")
    for request, status in (
        (b"\0" * 100_000, b"400"),
        (head.encode() + b"Content-Length: 99999999999\r\n\r\n" + b"x" * 1_000_000, b"413"),
        (head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + b"100000\r\n" + b"x" * 0x100000 + b"\r\n" * 1, b""),
        (head.encode() + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc", b"400"),
        (head.encode() + b"Content-Length: -1\r\n\r\n", b"400"),
        (head.encode() + b"X: " + b"y" * 100_000 + b"\r\n\r\n", b"431"),
        (
            head.encode() + b"Content-Type: application/x-ndjson\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{]",
            b"400",
        ),
        (
            head.encode()
            + b"Content-Type: application/x-bk-entries\r\nConnection: close\r\nContent-Length: 4\r\n\r\n"
            + b"\xff" * 4,
            b"400",
        ),
    ):
        if not status:
            with socket.create_connection(gateway.address) as connection:
                connection.sendall(request)  # and is gone
            continue
        assert raw(gateway, request).startswith(b"HTTP/1.1 " + status), request[:300]
    assert json.loads(gateway.call("GET", f"{API}/logs/hostile/entries")[2])["entries"] == []
    assert gateway.metric("process_resident_memory_bytes") - before < 16 << 20
    assert gateway.metric("bookies_gateway_bodies_bytes") == 0
    assert gateway.call("POST", f"{API}/logs/hostile/entries", b"fine")[0] == 201


def test_a_gateway_without_users_or_with_a_wrong_setting_does_not_start(cluster: LocalCluster) -> None:
    for words, problem in (((), "a gateway needs users"), (("--set", "nonsense=1"), "a gateway has http_port")):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BK_HTTP")}
        done: subprocess.CompletedProcess[Any] = subprocess.run(
            [sys.executable, "-m", "bookies", "gateway", "run", "--metadata", cluster.metadata_uri, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, problem in done.stderr) == (2, True), done.stderr
