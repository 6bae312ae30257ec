"""A cluster moves from a file to a real ZooKeeper and back, killed on the way; Apache's shell reads what arrived."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

import pytest
from tests.apache.apache import jars
from tests.apache.zookeeper import zookeeper_server

from bookies.config import BookieConfig
from bookies.metadata.uri import connect
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.runtime import aio
from bookies.storage.identity.cookie import master_cookie

pytestmark = pytest.mark.apache
LEDGERS = 400
B1 = BookieId("b1")


def bk(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bookies.admin.cli", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def done(*words: str) -> str:
    process = bk(*words)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    return printed


def shell(folder: pathlib.Path, uri: str, *words: str) -> str:
    """Apache's `bookkeeper shell`."""
    conf = folder / "bk.conf"
    conf.write_text(f"metadataServiceUri={uri}\n")
    command = ["java", "-Xmx256m", "-cp", f"{jars()}/*", "org.apache.bookkeeper.bookie.BookieShell", "-conf", str(conf)]
    found = subprocess.run([*command, *words], capture_output=True, text=True, check=True, timeout=120)
    return found.stdout + found.stderr


async def fill(directory: str) -> None:
    driver = connect(f"file:{directory}", aio.runtime())
    await driver.open()
    instance_id = await driver.initialize_cluster()
    await driver.create_cookie(B1, master_cookie(BookieConfig(), B1, instance_id).pack())
    for count in range(LEDGERS):
        ledger_id = await driver.next_ledger_id()
        version = (3, 2, 3, 1)[count % 4]
        digest = {} if version > 1 else {"digest_type": None, "password": None}
        record = LedgerMetadata(ledger_id, 1, 1, 1, ((0, (B1,)),), LedgerState.CLOSED, 4, 50, format_version=version)
        await driver.create_ledger(LedgerMetadata(**{**_fields(record), **digest}))
        if count % 9 == 0:
            await driver.delete_ledger(ledger_id)
    await driver.close()


def _fields(record: LedgerMetadata) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def test_there_and_back(tmp_path: pathlib.Path) -> None:
    store, back = tmp_path / "store", tmp_path / "back"
    store.mkdir()
    aio.run(fill(str(store)))
    folder = tmp_path / "zookeeper"
    folder.mkdir()
    with zookeeper_server(folder) as server:
        uri = f"zk+longhierarchical://{server.address}/ledgers"
        for seconds in (0.5, 1.0, 1.5, 2.0, 3.0):
            process = bk("metadata", "migrate", f"file:{store}", uri)
            time.sleep(seconds)
            process.kill()
            process.communicate()
        done("metadata", "migrate", f"file:{store}", uri)
        assert "the target is complete and equal" in done("metadata", "migrate", f"file:{store}", uri)
        assert "no fault found" in done("metadata", "check", "--metadata", uri)
        instance_id = shell(tmp_path, uri, "whatisinstanceid")
        listed = shell(tmp_path, uri, "listledgers")
        assert f"ledgerID: {LEDGERS - 1}" in listed
        assert listed.count("ledgerID: ") == LEDGERS - (LEDGERS + 8) // 9
        for ledger_id in (1, 2, 3):
            assert "CLOSED" in shell(tmp_path, uri, "ledgermetadata", "-ledgerid", str(ledger_id))
        done("metadata", "migrate", uri, f"file:{back}")
        assert "the target is complete and equal" in done("metadata", "migrate", f"file:{store}", f"file:{back}")
        shown = done("metadata", "show", "--metadata", f"file:{back}")
        assert next(line.split()[-1] for line in shown.splitlines() if line.startswith("instance id")) in instance_id
        assert f"next {LEDGERS}, {(LEDGERS + 8) // 9} used by deleted ledgers" in shown
    assert os.listdir(back) == ["metadata.db"]
