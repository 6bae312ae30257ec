"""Files of a backup: runs that are complete, copies that have lost files, what nobody lists. No Spark, no cluster."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from bookies.client.read.offloaded import index_name
from bookies.errors import InvalidArgument, ReadFailed
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.ledger.backup import FORMAT, Contents, LedgerCopy, RunManifest, end_name
from bookies.spark.jobs.backup import _check_new, _confirm
from bookies.spark.jobs.offload import attempt_of
from bookies.spark.jobs.shared import backup_files, common
from bookies.spark.jobs.shared.backup_files import (
    DumpFile,
    complete_copy,
    contents_of,
    delete_leftovers,
    delete_run,
    lost_copies,
    metadata_of,
    name_copy,
    root_of,
    run_of,
    runs,
    write_contents,
    write_manifest,
)
from bookies.spark.jobs.shared.common import JobConfig
from bookies.spark.jobs.verify import OPTIONS, chosen_for, items_of, rows_of
from bookies.spark.write import tier


def record(ledger_id: int = 5) -> LedgerMetadata:
    return LedgerMetadata(ledger_id, 1, 1, 1, ((0, (BookieId("a"),)),), LedgerState.CLOSED, -1, 0, ctime_ms=900)


OWN = "-0123456789ab"  # the end of the names of a backup's attempts


def copied(root: str, attempt: str, ledger_id: int = 5) -> LedgerCopy:
    """A copy of a ledger without entries: its index is its only file."""
    attempt += OWN
    directory = f"{backup_files.ledger_directory(root, ledger_id)}{attempt}"
    index, content = tier.index_of(ledger_id, attempt, [])
    crc = tier.write_index(directory, index)
    return LedgerCopy(ledger_id, attempt, 0, 0, content.crc, crc, 1, 900, ((index_name(crc), len(index.pack())),))


def written(root: str, name: str, ended_ms: int, *copies: LedgerCopy) -> RunManifest:
    dump = DumpFile(root, name)
    dump.write([{"kind": "cluster", "format": 1}, {"kind": "record", "name": "logs/orders", "data": "x"}])
    dump.write([{"kind": "end", "lines": 3}])
    digest = dump.finish()
    ledgers = write_contents(root, name, Contents(copies, (), ()))
    manifest = RunManifest(FORMAT, name, "c1", "", 1, ended_ms, len(copies), 0, 0, 0, digest, ledgers)
    write_manifest(root, manifest)
    return manifest


class Late:
    """Something one of whose calls is preceded by something else."""

    def __init__(self, inner: Any, name: str, before: Callable[[], None]) -> None:
        self._inner, self._name, self._before = inner, name, before

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)

        def late(*arguments: Any) -> Any:
            self._before()
            return call(*arguments)

        return late if name == self._name else call


@pytest.fixture
def root(tmp_path: pathlib.Path) -> str:
    return f"{tmp_path}/safe/c1"


def test_a_run_exists_when_its_manifest_does(root: str) -> None:
    to = root.rpartition("/")[0]
    with pytest.raises(InvalidArgument, match="has no backup: `bk spark backup"):
        root_of(to)
    DumpFile(root, "killed").finish()
    assert runs(root) == []
    monday = written(root, "monday", 5, copied(root, "one"))
    assert runs(root) == [monday]
    assert root_of(to) == (to, "c1")
    [item] = metadata_of(root, monday)
    assert (item.name, item.data) == ("logs/orders", b"x")  # type: ignore[union-attr]
    assert [copy.attempt for copy in contents_of(root, monday).copies] == ["one" + OWN]
    written(f"{to}/c2", "monday", 5)
    with pytest.raises(InvalidArgument, match="has backups of clusters c1, c2: move them"):
        root_of(to)
    delete_run(root, "monday")
    assert runs(root) == []


@pytest.mark.parametrize("name", ["metadata.jsonl", "ledgers.json"])
def test_damaged_files_of_a_run_are_refused(root: str, name: str) -> None:
    manifest = written(root, "monday", 5)
    path = pathlib.Path(root, "run-monday", name)
    path.write_bytes(path.read_bytes().replace(b"e", b"E", 1))
    with pytest.raises(ReadFailed, match=f"{name} is not as run monday wrote it: choose another run"):
        _ = list(metadata_of(root, manifest)), contents_of(root, manifest)
    path.unlink()
    with pytest.raises(ReadFailed, match=f"{name} cannot be read, so choose another run"):
        _ = list(metadata_of(root, manifest)), contents_of(root, manifest)


def test_a_complete_copy_serves_any_run_while_its_files_are_there(root: str) -> None:
    assert complete_copy(root, record()) is None
    copy = copied(root, "one")
    assert complete_copy(root, record()) is None  # killed before it was named
    name_copy(root, record(), copy)
    assert complete_copy(root, record()) == copy
    assert complete_copy(root, record().replace(ctime_ms=901)) is None
    path = pathlib.Path(root, "ledger-5", end_name(record()))
    path.write_bytes(path.read_bytes().replace(b'"rows":0', b'"rows":1'))
    assert complete_copy(root, record()) is None
    name_copy(root, record(), copy)
    assert lost_copies(root, [copy, replace(copy, ledger=6)]) == {6}
    index = pathlib.Path(root, "ledger-5", "one" + OWN, index_name(copy.index))
    index.write_bytes(index.read_bytes() + b" ")
    assert lost_copies(root, [copy]) == {5}
    assert complete_copy(root, record()) is None


def test_what_no_run_lists_is_deleted_when_it_is_old(root: str) -> None:
    to = root.rpartition("/")[0]
    listed, other = copied(root, "one"), copied(root, "two", 6)
    written(root, "monday", 5, listed)
    DumpFile(root, "killed").finish()
    delete_leftovers(to, "c1", 0.0)
    assert lost_copies(root, [listed, other]) == set()
    delete_leftovers(to, "c1", 1e12)
    assert lost_copies(root, [listed, other]) == {6}
    assert [path.name for path in pathlib.Path(root).glob("run-*")] == ["run-monday"]


def test_the_sweeps_of_a_backup_and_of_an_offload_to_one_place_leave_the_files_of_the_other(root: str) -> None:
    to = root.rpartition("/")[0]
    offloaded = attempt_of(record(), "c1", "nightly")
    backup = copied(root, "monday").attempt
    for name in (offloaded, "by-hand", "friday-0123456789abc"):
        tier.write_index(tier.directory_of(to, "c1", 5, name), tier.index_of(5, name, [])[0])
    assert [one.attempt for one in tier.attempts(to, "c1", tier.OFFLOAD_DIGITS)] == [offloaded]
    assert [one.attempt for one in tier.attempts(to, "c1", tier.BACKUP_DIGITS)] == [backup]
    assert tier.backup_name("monday") != tier.backup_name("monday")
    delete_leftovers(to, "c1", 1e12)
    left = sorted(path.name for path in pathlib.Path(root, "ledger-5").iterdir())
    assert left == ["by-hand", "friday-0123456789abc", offloaded]


@pytest.mark.parametrize("is_listed_first", [True, False])
def test_a_run_that_ends_during_a_sweep_loses_no_copy(
    root: str, monkeypatch: pytest.MonkeyPatch, *, is_listed_first: bool
) -> None:
    """It ends after the sweep has read which copies are listed. Either it gives way, or the sweep keeps its copies."""
    to = root.rpartition("/")[0]
    copy, used = copied(root, "one"), backup_files._used
    written(root, "monday", 5)
    calls = 0

    def late(root: str) -> set[str]:
        nonlocal calls
        calls += 1
        found = set() if calls == 1 else used(root)
        if calls == (1 if is_listed_first else 2):
            run = written(root, "tuesday", 6, copy)
            if is_listed_first:
                _confirm(root, run, contents_of(root, run), [copy])
            else:
                with pytest.raises(ReadFailed, match="copies of 1 ledgers at present, so there is no run tuesday"):
                    _confirm(root, run, contents_of(root, run), [copy])
        return found

    monkeypatch.setattr(backup_files, "_used", late)
    delete_leftovers(to, "c1", 1e12)
    for run in runs(root):
        assert lost_copies(root, contents_of(root, run).copies) == set()
    assert [run.run for run in runs(root)] == (["monday", "tuesday"] if is_listed_first else ["monday"])
    assert list(pathlib.Path(root, "sweeps").iterdir()) == []


@pytest.mark.parametrize("call", ["delete_dir", "delete_file", "contents_of", "_read"])
def test_sweeps_at_the_same_time_do_not_fail_each_other(root: str, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """One of them begins and ends before this call of the other one, after it has deleted an older run."""
    to, kept = root.rpartition("/")[0], copied(root, "three", 7)
    _ = copied(root, "one"), copied(root, "two", 6), DumpFile(root, "killed").finish()
    written(root, "monday", 5, kept)
    written(root, "tuesday", 6, kept)
    system_of, has_run = tier.system_of, False

    def sweep() -> None:
        nonlocal has_run
        if not has_run:
            has_run = True
            delete_run(root, "monday")
            delete_leftovers(to, "c1", 1e12)

    if call.startswith("delete"):
        monkeypatch.setattr(tier, "system_of", lambda uri: (Late(system_of(uri)[0], call, sweep), system_of(uri)[1]))
    else:
        late = Late(backup_files, call, sweep)
        monkeypatch.setattr(backup_files, call, getattr(late, call))
    delete_leftovers(to, "c1", 1e12)
    assert has_run
    assert lost_copies(root, [kept]) == set()
    assert [run.run for run in runs(root)] == ["tuesday"]
    assert sorted(path.name for path in pathlib.Path(root).glob("ledger-*/*")) == ["three" + OWN]
    assert list(pathlib.Path(root, "sweeps").iterdir()) == []
    delete_run(root, "monday")


def test_what_a_killed_sweep_has_announced_is_copied_again(root: str) -> None:
    to = root.rpartition("/")[0]
    copy, kept = copied(root, "one"), copied(root, "two", 6)
    name_copy(root, record(), copy)
    written(root, "monday", 5, kept)
    sweeps = pathlib.Path(root, "sweeps")
    sweeps.mkdir()
    (sweeps / "_newhalf.json").write_bytes(b"[")
    (sweeps / "killed.json").write_bytes(b'["ledger-5/one-0123456789ab","run-killed"]')
    assert complete_copy(root, record()) is None
    with pytest.raises(InvalidArgument, match=r"deletes what is left of run killed in .*: choose another run id"):
        _check_new(root, "killed")
    _check_new(root, "tuesday")
    run = written(root, "killed", 6, kept)
    with pytest.raises(ReadFailed, match="so there is no run killed: repeat it under a new id"):
        _confirm(root, run, contents_of(root, run), [])
    delete_leftovers(to, "c1", 0.0)
    assert (sweeps / "killed.json").exists()
    delete_leftovers(to, "c1", 1e12)
    assert [path.name for path in sweeps.iterdir()] == ["_newhalf.json"]
    assert lost_copies(root, [copy, kept]) == {5}
    (sweeps / "damaged.json").write_bytes(b"{")
    with pytest.raises(InvalidArgument, match=r"damaged.json is damaged: delete it while no backup runs"):
        lost_copies(root, [kept])


def test_a_dump_that_is_not_finished_leaves_nothing(root: str) -> None:
    dump = DumpFile(root, "monday")
    dump.write([{"kind": "cluster"}])
    dump.discard()
    dump.discard()
    assert list(pathlib.Path(root, "run-monday").iterdir()) == []


def test_a_repeated_verification_does_not_take_one_backup_run_for_another(root: str) -> None:
    def asked(**options: Any) -> JobConfig:
        return common.checked(JobConfig("", "v", options={"backup": root.rpartition("/")[0], **options}), OPTIONS)

    written(root, "monday", 5, copied(root, "one"))
    config, place, monday = chosen_for(asked())
    assert (config.options["backup_run"], place, monday.run) == ("monday", root, "monday")
    written(root, "tuesday", 6, copied(root, "two"))
    [before], [after] = (items_of(contents_of(root, run).copies) for run in (monday, chosen_for(asked())[2]))
    totals = [(before.name, common.DONE, 1, 10, ""), (after.name, common.FAILED, 0, 0, "damaged")]
    assert rows_of("v", [before], totals) == [("v", 5, common.DONE, 1, 10, "")]
    assert rows_of("v", [after], totals) == [("v", 5, common.FAILED, 0, 0, "damaged")]
    # A run is repeated only with the parameters that it was begun with.
    assert chosen_for(asked())[0].options != config.options == chosen_for(asked(backup_run="monday"))[0].options


def test_files_of_a_copy_are_read_without_the_cluster(root: str) -> None:
    copy = copied(root, "one")
    assert backup_files.opened_files(root, copy).check().rows == 0
    other = backup_files.opened_files(root, replace(copy, index=1))
    with pytest.raises(ReadFailed, match="damaged or gone"):
        other.check()
    [index] = pathlib.Path(root).rglob("_index-*.json")
    index.write_bytes(index.read_bytes() + b" ")
    with pytest.raises(ReadFailed, match="its CRC is not the one"):
        backup_files.opened_files(root, copy).check()


def test_a_damaged_run_does_not_keep_others_from_being_read(root: str, tmp_path: pathlib.Path) -> None:
    monday = written(root, "monday", 1)
    written(root, "tuesday", 2)
    [damaged] = tmp_path.rglob("run-tuesday/manifest.json")
    damaged.write_bytes(b"{")
    assert run_of(root, "monday") == monday
    for name in ("tuesday", None, "sunday"):
        with pytest.raises(InvalidArgument, match="or is damaged: read another run with --backup-run"):
            run_of(root, name)
    damaged.unlink()
    assert run_of(root, None) == monday
    with pytest.raises(InvalidArgument, match="has no complete backup run sunday; the latest are monday"):
        run_of(root, "sunday")


@pytest.mark.parametrize("name", [backup_files.METADATA, backup_files.LEDGERS])
@pytest.mark.parametrize("content", [b"", b"of another run of this id"])
def test_a_run_whose_files_are_not_its_own_does_not_exist(
    root: str, tmp_path: pathlib.Path, name: str, content: bytes
) -> None:
    manifest = written(root, "monday", 1)
    nothing = Contents((), (), ())
    _confirm(root, manifest, nothing, [])
    [file] = tmp_path.rglob(f"run-monday/{name}")
    file.write_bytes(content)
    with pytest.raises(ReadFailed, match="there is no such run: repeat it under a new id"):
        _confirm(root, manifest, nothing, [])
    assert runs(root) == []
