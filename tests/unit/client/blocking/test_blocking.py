"""The blocking client's thread: what it refuses, how it ends; a process that forks; stores without a cluster."""

from __future__ import annotations

import asyncio
import inspect
import os
import pathlib
import subprocess
import sys
import threading
from concurrent.futures import Future

import pytest

import bookies
from bookies.client.base.iteration import Batches, Entries
from bookies.client.blocking import (
    blocking,
    blocking_administration,
    blocking_iteration,
    blocking_lease,
    blocking_log,
)
from bookies.client.blocking.blocking import LoopThread
from bookies.client.client import Client
from bookies.client.log import Log, LogReader, LogWriter
from bookies.client.log.consumers import LogConsumer
from bookies.client.log.records.log_records import LogEntries
from bookies.client.log.sequenced import SequencedWriter
from bookies.client.read import LedgerReader
from bookies.client.repair import Administration
from bookies.client.turns.lease import Election, Lease
from bookies.client.write import AdvancedLedgerWriter, LedgerWriter
from bookies.errors import ClientClosed, InvalidArgument, MetadataError
from bookies.metadata.embedded import EmbeddedDriver
from bookies.runtime import aio

# What handles are to each other, and what `connect` does here.
PLUMBING = {
    "begin",
    "check_open",
    "client_closed",
    "client_stopped",
    "wait_whole",
    "enter",
    "fail",
    "last_pushed",
    "numbered",
    "open_session",
    "traced_by",
    "transactions",
    "announce",
    "is_busy",
    "send_queued",
    "learn",
}
PLUMBING |= {"on_change", "on_close", "on_confirmed", "on_failed", "on_released"}


def public_names(kind: type) -> set[str]:
    return {name for each in kind.__mro__[:-1] for name in vars(each) if not name.startswith("_")} - PLUMBING


@pytest.mark.parametrize(
    ("asynchronous", "twin"),
    [
        (Client, blocking.Client),
        (LedgerReader, blocking.LedgerReader),
        (LedgerWriter, blocking.LedgerWriter),
        (AdvancedLedgerWriter, blocking.LedgerWriter),
        (Administration, blocking_administration.Administration),
        (Entries, blocking_iteration.BlockingEntries),
        (Batches, blocking_iteration.BlockingBatches),
        (Log, blocking_log.Log),
        (LogReader, blocking_log.LogReader),
        (LogEntries, blocking_log.BlockingLogEntries),
        (LogWriter, blocking_log.LogWriter),
        (SequencedWriter, blocking_log.SequencedWriter),
        (LogConsumer, blocking_log.LogConsumer),
        (Lease, blocking_lease.Lease),
        (Election, blocking_lease.Election),
    ],
)
def test_the_twin_has_the_same_words(asynchronous: type, twin: type) -> None:
    assert public_names(asynchronous) == public_names(twin)
    for name in public_names(twin):
        theirs, ours = inspect.getattr_static(asynchronous, name), inspect.getattr_static(twin, name)
        assert isinstance(theirs, property) == isinstance(ours, property), name
        if inspect.isfunction(theirs):
            assert inspect.getdoc(ours), name
            expected = inspect.signature(theirs).parameters.values()
            found = inspect.signature(ours).parameters.values()
            assert [(each.name, each.kind, each.default) for each in expected] == [
                (each.name, each.kind, each.default) for each in found
            ], name


# -- the thread ----------------------------------------------------------------------------------------------------


def test_a_call_that_waits_when_the_client_is_closed() -> None:
    thread = LoopThread()
    waiting = threading.Event()
    outcome: Future[None] = Future()

    async def wait() -> None:
        waiting.set()
        await asyncio.sleep(3600)

    def call() -> None:
        try:
            outcome.set_result(thread.call(wait()))
        except ClientClosed as error:
            outcome.set_exception(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert waiting.wait(60)
    thread.stop()
    caller.join(60)
    with pytest.raises(ClientClosed, match=r"closed while this call waited; .* may or may not"):
        outcome.result(0)
    with pytest.raises(ClientClosed, match="connect again"):
        thread.call(wait())
    thread.stop()


def test_a_call_that_cancels_itself_is_just_that() -> None:
    thread = LoopThread()

    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(BaseException, match=r"^$") as caught:
        thread.call(cancelled())
    assert not isinstance(caught.value, ClientClosed)
    thread.stop()


def test_a_callback_cannot_wait_for_its_own_thread() -> None:
    thread = LoopThread()

    async def nothing() -> None:
        pass

    async def callback() -> None:
        thread.call(nothing())

    with pytest.raises(InvalidArgument, match="hand it to another"):
        thread.call(callback())
    thread.call(nothing())
    thread.stop()


FORKING = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import bookies
from bookies.metadata.embedded.memory import shared_store
from bookies.metadata.shared.nodes import INSTANCE_ID, Put

shared_store("forked").commit([], [Put(INSTANCE_ID, b"x")])
store = bookies.blocking.connect("memory:forked")
assert store.bookies() == []
child = os.fork()
if child == 0:
    for call in (store.bookies, lambda: list(store.ledgers()), store.administration):
        try:
            call()
        except bookies.ClientClosed as error:
            assert "forked" in str(error) and "connect again" in str(error), error
        else:
            raise AssertionError("it must not be used here")
    store.close()  # harms nobody
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert store.bookies() == [], "the parent's goes on"
store.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_client_stays_with_the_process_that_made_it() -> None:
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr  # nothing but asyncio's regret about tasks that ended with the child


# -- stores without a cluster --------------------------------------------------------------------------------------


def test_a_client_makes_no_cluster(tmp_path: pathlib.Path) -> None:
    threads = threading.active_count()
    with pytest.raises(MetadataError, match=r"no metadata store at .*absent"):
        bookies.blocking.connect(f"file:{tmp_path}/absent")
    with pytest.raises(MetadataError, match=r"there is no cluster in .*, which has no metadata.db: .*`bk up`"):
        bookies.blocking.connect(f"file:{tmp_path}")
    assert list(tmp_path.iterdir()) == [], "nothing was made"
    with pytest.raises(MetadataError, match="there is no cluster at memory:: start one"):
        bookies.blocking.connect("memory:")

    async def make(*, is_cluster: bool) -> None:
        driver = EmbeddedDriver(str(tmp_path), aio.runtime())
        await driver.open()
        if is_cluster:
            await driver.initialize_cluster()
        await driver.close()

    asyncio.run(make(is_cluster=False))
    with pytest.raises(MetadataError, match=r"there is no cluster at file:.*: start one"):
        bookies.blocking.connect(f"file:{tmp_path}")
    asyncio.run(make(is_cluster=True))
    with bookies.blocking.connect(f"file:{tmp_path}") as store:
        assert store.bookies() == []
    assert threading.active_count() == threads


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "bookies", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: bk NOUN")
