"""What is wrong from outside, one thing at a time: one clear sentence, nothing else breaks, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator

import pytest
from tests.live import command

import bookies as bk
from bookies.admin.cluster import LocalCluster
from bookies.metadata import uri as metadata
from bookies.runtime import aio

pytestmark = pytest.mark.live

SETTINGS = {"journal_preallocate_size": 1 << 20, "index_cache_size": 1 << 20, "checkpoint_interval_ms": 100}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("bad") / "bk-data"
    with LocalCluster(directory, 3, lease_ms=2000, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def without_zookeeper() -> Iterator[subprocess.Popen[str]]:
    """`bk status` waits ten seconds for a server that does not run. It begins with the first test of the file."""
    with command.started("status", "--metadata", "zk://localhost:1/ledgers") as process:
        yield process


@pytest.fixture
def uri(cluster: LocalCluster) -> Iterator[str]:
    """The cluster, which has to be as well after a test as before."""
    yield cluster.metadata_uri
    assert len(cluster.pids()) == 3
    with bk.blocking.connect(cluster.metadata_uri) as store, store.create() as ledger:
        ledger.append(b"still well")


def payloads(count: int) -> list[bytes]:
    return [b"payload %d of a ledger" % number for number in range(count)]


def written(uri: str, count: int = 20, **options: object) -> int:
    """A sealed ledger of `payloads`; its id."""
    with bk.blocking.connect(uri) as store, store.create(**options) as ledger:  # type: ignore[arg-type]
        ledger.append_many(payloads(count))
        return ledger.ledger_id


def lines_of(ledger_id: int, uri: str) -> list[bytes]:
    done = command.bk("ledger", "read", ledger_id, metadata=uri)
    assert done.status == 0, done.err
    return done.out.encode().splitlines()


# -- on the port ---------------------------------------------------------------------------------------------------


GARBAGE = {
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an oversized frame": (1 << 30).to_bytes(4, "big") + b"\x02\x01\x00\x00" + bytes(4096),
    "a negative size": b"\xff\xff\xff\xff" + bytes(64),
    "an empty frame": bytes(8),
    "an unknown operation": b"\x00\x00\x00\x04\x02\x77\x00\x00",
    "a TLS greeting": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2,
}


def test_garbage_on_the_port_ends_that_connection_only(cluster: LocalCluster, uri: str) -> None:
    garbage = [*GARBAGE.values(), *(os.urandom(1 << size) for size in range(0, 16, 3))]
    with bk.blocking.connect(uri) as store, store.create() as ledger:
        for number, data in enumerate(garbage):
            for bookie in cluster.bookies:
                assert bookie.host is not None
                with socket.create_connection((bookie.host, bookie.port), timeout=120) as peer:
                    peer.sendall(data)
                    peer.shutdown(socket.SHUT_WR)
                    while peer.recv(65536):
                        pass
            assert ledger.append(b"payload %d of a ledger" % number) == number
    assert lines_of(ledger.ledger_id, uri) == payloads(len(garbage))
    for bookie in cluster.bookies:
        assert "Traceback" not in bookie.log.read_text()


def test_an_entry_larger_than_the_limit_is_refused_and_the_ledger_goes_on(uri: str, tmp_path: pathlib.Path) -> None:
    with bk.blocking.connect(uri) as store, store.create() as ledger:
        with pytest.raises(bk.InvalidArgument, match=r"an entry of 5,242,880 bytes exceeds the limit"):
            ledger.append(bytes(5 << 20))
        assert ledger.append(b"fits") == 0
    (tmp_path / "lines").write_bytes(b"first\n" + b"x" * (6 << 20) + b"\n")
    done = command.bk("ledger", "append", "--new", "--input", tmp_path / "lines", metadata=uri)
    assert done.status == 2
    left, sentence = done.err.splitlines()
    assert "is left open with 1 confirmed entry; `bk ledger recover" in left
    assert "an entry of 6,291,456 bytes exceeds the limit" in sentence
    assert done.out == ""


def test_a_bookie_with_a_smaller_limit_says_so_by_hanging_up(tmp_path: pathlib.Path) -> None:
    with LocalCluster(tmp_path / "bk-data", 1, settings={**SETTINGS, "frame_size_max": 64 << 10}) as small:
        with bk.blocking.connect(small.metadata_uri) as store:
            ledger = store.create(ensemble=1)
            ledger.append(b"small")
            with pytest.raises(bk.NotEnoughBookies, match=r"bookie b1 failed .* may or may not be stored"):
                ledger.append(bytes(1 << 20))
            ledger.close()
            assert [entry.payload for entry in store.recover(ledger.ledger_id).read()] == [b"small"]
        assert small.pids()
        assert "frame" in small.bookies[0].log.read_text()


# -- passwords and digests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest", ["crc32c", "crc32", "hmac", "none"])
def test_a_wrong_password_is_refused_and_disturbs_nobody(uri: str, digest: str) -> None:
    with bk.blocking.connect(uri) as store:
        ledger = store.create(password=b"right", digest=digest)
        ledger.append_many(payloads(5))
        for attempt in (store.open, store.recover):
            with pytest.raises(bk.Unauthorized, match=rf"password.*\(ledger {ledger.ledger_id}"):
                attempt(ledger.ledger_id, password=b"wrong")
        for verb in ("read", "tail", "recover", "seal"):
            done = command.bk("ledger", verb, ledger.ledger_id, "--password", "wrong", metadata=uri)
            assert done.status == 1
            assert "password" in done.sentence
        ledger.append(b"goes on")
        ledger.seal()
        done = command.bk("ledger", "read", ledger.ledger_id, "--password", "right", metadata=uri)
        assert done.out.encode().splitlines() == [*payloads(5), b"goes on"]


def test_a_wrong_digest_type_is_a_mismatch_that_names_ledger_and_entry(uri: str) -> None:
    """Entries say nothing about their digest; the record in the metadata store does, and here it lies."""
    ledger_id = written(uri, digest="crc32c")

    async def lie() -> None:
        driver = metadata.connect(uri, aio.runtime())
        await driver.open()
        try:
            found = await driver.read_ledger(ledger_id)
            await driver.write_ledger(found.metadata.replace(digest_type=bk.DigestType.CRC32), found.version)
        finally:
            await driver.close()

    asyncio.run(lie())
    done = command.bk("ledger", "read", ledger_id, metadata=uri)
    assert done.status == 1
    assert_mismatch(done.sentence, ledger_id, 0)
    assert done.out == ""


def assert_mismatch(sentence: str, ledger_id: int, entry_id: int, replicas: int = 3) -> None:
    assert sentence.count("does not verify (digest)") == replicas
    assert f"(ledger {ledger_id}, entry {entry_id}" in sentence
    assert "bk ledger verify" in sentence


# -- damage --------------------------------------------------------------------------------------------------------


def payload_count(cluster: LocalCluster, bookie_id: str, payload: bytes) -> int:
    logs = pathlib.Path(cluster.directory, bookie_id, "ledgers", "current").glob("*.log")
    return sum(path.read_bytes().count(payload) for path in logs)


def damage_all(cluster: LocalCluster, bookie_id: str, payload: bytes) -> None:
    """Flip a byte of every copy of this payload in the entry logs of one bookie, which has to be stopped."""
    for path in pathlib.Path(cluster.directory, bookie_id, "ledgers", "current").glob("*.log"):
        path.write_bytes(path.read_bytes().replace(payload, bytes([payload[0] ^ 1]) + payload[1:]))
    assert payload_count(cluster, bookie_id, payload) == 0


def test_a_flipped_byte_in_one_replica_is_read_from_another_and_in_all_is_reported(tmp_path: pathlib.Path) -> None:
    with LocalCluster(tmp_path / "bk-data", 3, settings=SETTINGS) as cluster:
        uri = cluster.metadata_uri
        ledger_id = written(uri, 40)
        striped = written(uri, 40, write_quorum=2)
        cluster.stop()
        # Each of the two ledgers holds this payload, on three and on two bookies.
        holders = {bookie.id: payload_count(cluster, bookie.id, payloads(40)[13]) for bookie in cluster.bookies}
        assert sorted(holders.values()) == [1, 2, 2]
        damage_all(cluster, "b1", payloads(40)[13])
        cluster.start()
        assert lines_of(ledger_id, uri) == payloads(40)
        assert lines_of(striped, uri) == payloads(40)

        cluster.stop()
        damage_all(cluster, "b2", payloads(40)[13])
        damage_all(cluster, "b3", payloads(40)[13])
        cluster.start()
        for each in (ledger_id, striped):
            done = command.bk("ledger", "read", each, metadata=uri)
            assert done.status == 1
            assert_mismatch(done.sentence, each, 13, replicas=3 if each == ledger_id else 2)
            done = command.bk("ledger", "read", each, "--first", 14, metadata=uri)
            assert done.out.encode().splitlines() == payloads(40)[14:]
        with bk.blocking.connect(uri) as store, store.open(ledger_id) as reader:
            with pytest.raises(bk.DigestMismatch) as caught:
                reader.read_entry(13)
            assert (caught.value.ledger_id, caught.value.entry_id) == (ledger_id, 13)
            assert reader.read_entry(12).payload == payloads(40)[12]
        assert len(cluster.pids()) == 3


# -- commands ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (("ledger", "read", 424242), 1, "no such ledger"),
        (("ledger", "tail", 424242), 1, "no such ledger"),
        (("ledger", "show", 424242), 1, "no such ledger"),
        (("ledger", "recover", 424242), 1, "no such ledger"),
        (("ledger", "delete", 424242, "--yes"), 1, "no such ledger"),
        (("ledger", "create", "--ensemble", 9), 1, "ensemble=9 needs 9 writable bookies"),
        (("ledger", "create", "--ensemble", 1, "--write-quorum", 2), 2, "write_quorum"),
        (("ledger", "create", "--label", "nonsense"), 2, "NAME=VALUE"),
        (("bookie", "show", "b9"), 2, "there is no bookie 'b9'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(uri: str, words: tuple[object, ...], status: int, expected: str) -> None:
    done = command.bk(*words, metadata=uri)
    assert done.status == status
    assert expected in done.sentence
    assert done.sentence.startswith(f"bk {words[0]}: ")
    assert done.out == ""


@pytest.mark.parametrize(
    ("metadata_uri", "status", "expected"),
    [
        ("foo:bar", 2, "'foo:bar' is not a metadata URI: expected file:DIR"),
        ("nonsense", 2, "is not a metadata URI"),
        ("file:", 2, "names no directory"),
        ("file:/nowhere/at/all", 1, "no metadata store at /nowhere/at/all: `bk up` creates a cluster"),
        ("file:/dev/null", 1, "no metadata store at /dev/null"),
    ],
)
def test_a_metadata_store_that_is_none(metadata_uri: str, status: int, expected: str) -> None:
    for words in (("ledger", "list"), ("status",), ("ledger", "create")):
        done = command.bk(*words, metadata=metadata_uri)
        assert done.status == status
        assert expected in done.sentence


def test_a_zookeeper_that_is_not_there_is_named(without_zookeeper: subprocess.Popen[str]) -> None:
    done = command.finish(without_zookeeper)
    assert done.status == 1
    assert "no ZooKeeper server at localhost:1 has answered" in done.sentence


def test_a_damaged_metadata_store_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "metadata.db").write_bytes(b"this is no database" * 1000)
    done = command.bk("ledger", "list", metadata=f"file:{tmp_path}")
    assert done.status == 1
    assert str(tmp_path) in done.sentence


def test_an_unreadable_input_creates_nothing(uri: str, tmp_path: pathlib.Path) -> None:
    closed = tmp_path / "closed"
    closed.write_text("secret")
    closed.chmod(0)
    before = command.bk("ledger", "list", "--json", metadata=uri).json()
    for path, reason in ((tmp_path, "is a directory"), (tmp_path / "absent", "no such file or directory")):
        done = command.bk("ledger", "append", "--new", "--input", path, metadata=uri)
        assert done.status == 2
        assert done.sentence == f"bk ledger: cannot read {path}: {reason}; nothing was created"
    done = command.bk_process(
        "ledger", "append", "--new", "--input", closed, "--metadata", uri, preexec_fn=command.drop_root
    )
    assert done.status == 2
    assert done.sentence == f"bk ledger: cannot read {closed}: permission denied; nothing was created"
    assert command.bk("ledger", "list", "--json", metadata=uri).json() == before


def test_wrong_use_is_status_2() -> None:
    for words in (
        (),
        ("nonsense",),
        ("ledger",),
        ("ledger", "read"),
        ("ledger", "read", "-7"),
        ("up", "--bookies", "x"),
    ):
        assert command.bk(*words).status == 2


def test_json_is_one_document_or_one_line_per_row(uri: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "lines").write_bytes(b"plain\n\xff\xfe not text\n")
    appended = command.bk(
        "ledger", "append", "--new", "--json", "--label", "kind=json", "--input", tmp_path / "lines", metadata=uri
    ).json()
    ledger_id = appended["ledger"]
    assert appended == {"ledger": ledger_id, "entries": 2, "length": 16}
    read = command.bk("ledger", "read", ledger_id, "--json", metadata=uri)
    assert read.rows() == [{"entry": 0, "payload": "plain"}, {"entry": 1, "payload": "\\xff\\xfe not text"}]
    tail = command.bk("ledger", "tail", ledger_id, "--from", 1, "--json", metadata=uri)
    assert [row["entry"] for row in tail.rows()] == [1]
    shown = command.bk("ledger", "show", ledger_id, "--json", metadata=uri).json()
    assert (shown["state"], shown["last_entry"], shown["labels"]) == ("CLOSED", 1, {"kind": "json"})
    assert "password" not in shown
    for fragment in shown["fragments"]:  # `show` also says where replicas are, which takes questions to the bookies.
        assert fragment.pop("locations") == [None, None, None]
        assert (fragment.pop("adherence"), fragment.pop("findings")) == ("strict", [])
    assert command.bk("ledger", "list", "--label", "kind=json", "--json", metadata=uri).json() == [shown]
    assert command.bk("ledger", "recover", ledger_id, "--json", metadata=uri).json() == shown
    created = command.bk("ledger", "create", "--json", metadata=uri).json()
    assert created["state"] == "OPEN"
    assert command.bk("ledger", "seal", created["ledger"], "--json", metadata=uri).json()["state"] == "CLOSED"
    deleted = command.bk("ledger", "delete", created["ledger"], "--yes", "--json", metadata=uri).json()
    assert deleted == {"deleted": created["ledger"]}
    status = command.bk("status", "--json", metadata=uri).json()
    assert [each["mode"] for each in status["bookies"]] == ["writable"] * 3
    assert [each["bookie"] for each in command.bk("bookie", "list", "--json", metadata=uri).json()] == [
        "b1",
        "b2",
        "b3",
    ]
    assert command.bk("bookie", "show", "b2", "--json", metadata=uri).json()["mode"] == "writable"
    findings = command.bk("doctor", "--directory", tmp_path, "--json", metadata=uri).json()
    assert {each["level"] for each in findings} <= {"ok", "warn", "bad"}


def test_inspection_is_json_too(cluster: LocalCluster, uri: str) -> None:
    written(uri)
    home = pathlib.Path(cluster.directory, "b1")
    for verb, path in (
        ("journal", home / "journal"),
        ("entrylog", home / "ledgers"),
        ("index", home / "ledgers"),
        ("lastmark", home / "ledgers"),
        ("cookie", home / "journal"),
        ("directory", home / "ledgers"),
    ):
        done = command.bk("inspect", verb, path, "--json")
        assert done.status == 0, done.err
        assert done.json(), verb


# -- interruptions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_append_says_which_ledger_is_left_open(uri: str, number: signal.Signals) -> None:
    """While its input is silent. What does not fit into the pipe and into the pieces in flight is confirmed."""
    lines = payloads(100_000)
    with command.started("ledger", "append", "--new", "--metadata", uri) as process:
        assert process.stdin is not None
        process.stdin.write(b"\n".join(lines).decode())
        process.stdin.flush()
        done = command.finish(process, number)
    assert done.status == 130
    assert done.out == ""
    left, *rest = done.err.splitlines()
    assert rest == ["", "interrupted"]
    found = re.fullmatch(
        r"ledger (\d+) is left open with ([\d,]+) confirmed entries; `bk ledger recover \1` .* losing any", left
    )
    assert found, left
    ledger_id, confirmed = int(found[1]), int(found[2].replace(",", ""))
    assert confirmed > 50_000
    assert command.bk("ledger", "recover", ledger_id, metadata=uri).status == 0
    assert lines_of(ledger_id, uri) == lines[: len(lines_of(ledger_id, uri))]
    assert len(lines_of(ledger_id, uri)) >= confirmed


def test_an_interrupted_tail_ends_quietly(uri: str) -> None:
    with bk.blocking.connect(uri) as store:
        ledger = store.create()
        ledger.append(b"first")
        ledger.append(b"second")
        with command.started("ledger", "tail", ledger.ledger_id, "--from", 0, "--metadata", uri) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "first\n"
            done = command.finish(process, signal.SIGINT)
            assert done.status == 130
            assert done.err.strip() == "interrupted"
        ledger.seal()


def test_a_reader_that_goes_away_is_no_error(uri: str) -> None:
    ledger_id = written(uri, 20_000)
    with command.started("ledger", "read", ledger_id, "--metadata", uri) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "payload 0 of a ledger\n"
        process.stdout.close()
        assert process.wait(120) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


# -- directories and disks -----------------------------------------------------------------------------------------


def bookie_words(directory: pathlib.Path, *more: object) -> tuple[object, ...]:
    """`bk bookie run` for a bookie that is expected to refuse."""
    (directory / "metadata").mkdir(exist_ok=True)
    return (
        *("bookie", "run", "--bookie-id", "b1", "--port", 0, "--metadata", f"file:{directory}/metadata"),
        *("--journal-dir", "b1/journal", "--ledger-dir", "b1/ledgers", *more),
    )


def test_a_directory_that_cannot_be_written_is_named(tmp_path: pathlib.Path) -> None:
    home = tmp_path / "b1"
    home.mkdir()
    home.chmod(0o555)
    done = command.bk_process(*bookie_words(tmp_path), cwd=tmp_path, preexec_fn=command.drop_root)
    assert done.status == 5
    assert done.sentence.startswith("cannot start bookie b1: cannot use b1/journal: permission denied.")
    assert list(home.iterdir()) == []

    home.chmod(0o755)
    (tmp_path / "metadata").chmod(0o555)
    done = command.bk_process(*bookie_words(tmp_path), cwd=tmp_path, preexec_fn=command.drop_root)
    assert done.status == 4
    assert done.sentence.startswith(f"cannot start bookie b1: {tmp_path}/metadata")
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("wiped", ["ledgers", "journal"])
def test_a_bookie_whose_directory_was_wiped_refuses_to_forget(tmp_path: pathlib.Path, wiped: str) -> None:
    with LocalCluster(tmp_path / "bk-data", 1, settings=SETTINGS) as cluster:
        uri = cluster.metadata_uri
        ledger_id = written(uri, 20, ensemble=1)
    home = tmp_path / "bk-data" / "b1"
    (home / wiped).rename(tmp_path / "kept")
    for is_there in (False, True):  # missing, then empty
        if is_there:
            (home / wiped).mkdir()
        done = command.bk_process(*bookie_words(tmp_path / "bk-data"), cwd=tmp_path / "bk-data")
        assert done.status == 5
        assert done.sentence.startswith("cannot start bookie b1: ")
        assert f"b1/{wiped}" in done.sentence
        done = command.bk("up", "--directory", tmp_path / "bk-data")
        assert done.status == 1
        assert done.sentence.startswith("bk up: cannot start bookie b1: ")
        assert not (home / wiped / "VERSION").exists()
        assert not (home / wiped / "current" / "VERSION").exists()
    (home / wiped).rmdir()
    (tmp_path / "kept").rename(home / wiped)
    with LocalCluster(tmp_path / "bk-data", settings=SETTINGS):
        assert lines_of(ledger_id, uri) == payloads(20)


@contextlib.contextmanager
def small_disk(directory: pathlib.Path, size: int) -> Iterator[None]:
    """A file system of its own in `directory`."""
    directory.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"needs to mount a small disk: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


DISK_SETTINGS = {**SETTINGS, "journal_size_max": 1 << 20, "write_cache_size": 1 << 20, "journal_backups_max": 0}
LARGE = os.urandom(32 << 10)
LARGE_COUNT = 1500  # 48 MB on every bookie


def written_with(store: bk.blocking.Client, bookie_id: str, fall_sick: Callable[[], None]) -> bk.LedgerMetadata:
    """A ledger of `LARGE_COUNT` entries, three replicas each, that begins with this bookie and ends without it."""
    while bookie_id not in (ledger := store.create(ack_quorum=3)).metadata.last_ensemble:
        ledger.seal()
    with ledger:
        for start in range(0, LARGE_COUNT, 50):
            if start == 200:
                fall_sick()
            ledger.append_many([b"%d " % number + LARGE for number in range(start, start + 50)])
    with store.open(ledger.ledger_id) as reader:
        for number, entry in enumerate(reader.read()):
            assert entry.payload == b"%d " % number + LARGE
        assert reader.last_add_confirmed == LARGE_COUNT - 1
    assert bookie_id not in ledger.metadata.last_ensemble
    return ledger.metadata


def check_alone(cluster: LocalCluster, store: bk.blocking.Client, metadata: bk.LedgerMetadata, bookie_id: str) -> None:
    """The bookie still has every entry of the fragment that it was part of; the others are gone afterwards."""
    for other in metadata.ensembles[0][1]:
        if other != bookie_id:
            cluster.kill(other)
    end = metadata.ensembles[1][0]
    assert end > 50
    with store.open(metadata.ledger_id) as reader:
        assert [int(entry.payload.split(b" ")[0]) for entry in reader.read(0, end - 1)] == list(range(end))


def test_a_full_disk_costs_one_bookie_and_no_entry(tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "bk-data"
    with small_disk(directory / "b2", 24 << 20):
        cluster = LocalCluster(directory, 4, lease_ms=1000, settings=DISK_SETTINGS)
        with cluster, bk.blocking.connect(cluster.metadata_uri, memory_limit=8 << 20) as store:
            metadata = written_with(store, "b2", lambda: None)
            log = cluster.bookies[1].log.read_text()
            assert "Traceback" not in log
            assert (
                "No space left on device" in log or "bookie.mode bookie=b2 mode=read-only" in log
            )  # whoever sees it first
            modes = {each.id: each.mode for each in store.bookies()}
            assert {modes[bookie] for bookie in ("b1", "b3", "b4")} == {"writable"}

            # With room again it serves again, and has everything it ever confirmed.
            subprocess.run(["mount", "-o", "remount,size=200m", str(directory / "b2")], check=True)
            if modes["b2"] == "down":
                assert "b2 failed: " in log
                assert "confirmed ones are in its journal" in log
                cluster.restart("b2")
            else:
                assert modes["b2"] == "read-only"
            check_alone(cluster, store, metadata, "b2")


def test_a_file_that_may_not_grow_costs_one_bookie_and_no_entry(tmp_path: pathlib.Path) -> None:
    cluster = LocalCluster(tmp_path / "bk-data", 4, lease_ms=1000, settings=DISK_SETTINGS)

    def limit() -> None:
        pid = cluster.bookies[1].pid
        assert pid is not None
        hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (512 << 10, hard))

    with cluster, bk.blocking.connect(cluster.metadata_uri, memory_limit=8 << 20) as store:
        metadata = written_with(store, "b2", limit)
        log = cluster.bookies[1].log.read_text()
        assert "Traceback" not in log
        assert "File too large" in log
        cluster.kill("b2")
        cluster.restart("b2")
        check_alone(cluster, store, metadata, "b2")
