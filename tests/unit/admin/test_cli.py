"""`bk` as a program: start-up time, usage errors, exit statuses."""

from __future__ import annotations

import argparse
import asyncio
import os
import pathlib
import re
import resource
import subprocess
import sys

import pytest

from bookies.admin import cli
from bookies.metadata.embedded import EmbeddedDriver
from bookies.runtime import aio

BUDGET_MS = 150


def bk(*words: str, cwd: pathlib.Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BK_")}
    return subprocess.run(
        [sys.executable, "-m", "bookies.admin.cli", *words],
        cwd=cwd,
        env=environment,
        input=stdin,
        capture_output=True,
        check=False,
    )


async def make_cluster(directory: str) -> None:
    """One without bookies."""
    driver = EmbeddedDriver(directory, aio.runtime())
    await driver.open()
    await driver.initialize_cluster()
    await driver.close()


def test_start_up_is_quick(tmp_path: pathlib.Path) -> None:
    """CPU time, the best of several runs, beyond the interpreter's own: so that a busy machine does not matter."""

    def best(*command: str) -> float:
        times = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
        return min(times)

    bare = best(sys.executable, "-c", "pass")
    full = best(sys.executable, "-m", "bookies.admin.cli", "ledger", "--help")
    assert full - bare < BUDGET_MS - 20, f"bk takes {full:.0f} ms, of which Python {bare:.0f} ms"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {noun} " in shown for noun in cli.COMMANDS)


@pytest.mark.parametrize("noun", list(cli.COMMANDS))
def test_every_command_has_help_with_an_example(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([noun, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert "usage:" in shown
    assert "example" in shown or "VERB" in shown


@pytest.mark.parametrize("noun", sorted(cli.COMMANDS.keys() - {"bench", "inspect"}))
def test_the_line_of_a_group_names_its_verbs(noun: str) -> None:
    """Two groups have a sentence instead: the help of the group lists their verbs."""
    groups = [action for action in cli.parser_of(noun)._actions if isinstance(action, argparse._SubParsersAction)]
    for group in groups:
        assert set(group.choices) <= set(re.split(r"[ ,:]+", cli.COMMANDS[noun][1]))


@pytest.mark.parametrize("words", [("help", "apache"), ("--help",), ("help", "ledger")])
def test_a_reader_that_has_enough_ends_the_output_quietly(words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "bookies.admin.cli", *words]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_typing_error_gets_its_neighbour(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["legder", "list"]) == 2
    assert "did you mean `bk ledger`?" in capsys.readouterr().err


def test_without_a_cluster_the_way_out_is_said(tmp_path: pathlib.Path) -> None:
    done = bk("ledger", "list", cwd=tmp_path)
    assert done.returncode == 2
    assert b"bk up" in done.stderr
    assert b"Traceback" not in done.stderr


def test_append_to_an_existing_ledger_is_refused_with_the_reason(tmp_path: pathlib.Path) -> None:
    done = bk("ledger", "append", "7", "--metadata", "memory:", cwd=tmp_path)
    assert done.returncode == 2
    assert b"one writer" in done.stderr


def test_unreadable_input_is_named_and_nothing_is_created(tmp_path: pathlib.Path) -> None:
    done = bk("ledger", "append", "--new", "--input", "absent.txt", "--metadata", "memory:", cwd=tmp_path)
    assert done.returncode == 2
    assert b"absent.txt" in done.stderr
    assert not list(tmp_path.iterdir())


def test_demo_refuses_an_unreadable_input_before_starting_anything(tmp_path: pathlib.Path) -> None:
    done = bk("demo", "--input", "absent.txt", cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert b"Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_unknown_setting_gets_its_neighbour(tmp_path: pathlib.Path) -> None:
    done = bk("bookie", "run", "--metadata", "memory:", "--set", "journal_size_maks=1", cwd=tmp_path)
    assert done.returncode == 2
    assert b"journal_size_max" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("ledger show seven", "'seven' is not a ledger id (a whole number, 0 or more)"),
        ("ledger create --label a=1 --label a=2", "--label a=2: a is given twice"),
        ("ledger create --ack-quorum 0", "ack"),
        ("ledger create --write-quorum 0", "quorum"),
        ("bench append --ledgers 0", "--ledgers 0: must be 1 or more"),
        ("bench append --window 0", "--window 0: must be 1 or more"),
        ("bench read --entries 0", "--entries 0: must be 1 or more"),
        ("bench storage --growth --ledgers 0", "--ledgers 0: must be 1 or more"),
        ("bench suite --runs -1", "--runs -1: must be 1 or more"),
        ("sim --jobs 0", "--jobs 0: must be 1 or more"),
    ],
)
def test_options_out_of_their_range_are_refused(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    arguments = words.split()
    if arguments[0] == "ledger":
        (tmp_path / "metadata").mkdir()
        asyncio.run(make_cluster(str(tmp_path / "metadata")))
        arguments += ["--metadata", f"file:{tmp_path}/metadata"]
    try:
        status = cli.main(arguments)
    except SystemExit as end:
        status = int(end.code or 0)
    shown = capsys.readouterr()
    assert status == 2, shown.err
    assert sentence in shown.err
    assert "internal error" not in shown.err
    assert shown.out == ""
