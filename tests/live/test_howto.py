"""The how-to pages: every `bk` command in them exists, and those of ```console blocks run and print what is shown.

`python -m tests.live.test_howto --write` runs the pages and puts the present outputs into them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from tests.live.command import Family, bk_process
from tests.live.page import ANY, FENCE, Command, blocks_of, is_shown

import bookies as bk
from bookies.admin import cli

pytestmark = pytest.mark.live

HOWTO = pathlib.Path(__file__).parents[2] / "docs" / "howto"
PAGES = sorted(path for path in HOWTO.glob("*.md") if path.name != "README.md")
BOOKIES, LEDGERS, EXPLAINED, EXPLAINED_ENTRIES = 4, 20, 17, 2000
PATIENCE_S = 120


# -- the pages -----------------------------------------------------------------------------------------------------


def runnable_pages() -> list[pathlib.Path]:
    """Pages with ```console blocks, but for those of Spark, whose sessions other tests have."""
    own = [page for page in PAGES if not page.name.startswith("spark-")]
    return [page for page in own if any(block.language == "console" for block in blocks_of(page.read_text()))]


def prose_of(text: str) -> str:
    return FENCE.sub("", text)


# -- commands exist ------------------------------------------------------------------------------------------------


parser_of = functools.cache(cli.parser_of)


def bk_calls(line: str) -> Iterator[list[str]]:
    """The words behind each `bk` of a shell line."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    call: list[str] | None = None
    for word in words:
        if set(word) <= set("|&;()<>"):
            if call is not None:
                yield call
            call = None
        elif call is not None:
            call.append(word)
        elif word == "bk":
            call = []
    if call is not None:
        yield call


def check_call(words: list[str]) -> None:
    """A whole command line parses."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            parser_of(words[0]).parse_args(words[1:])
    except (SystemExit, KeyError) as error:
        raise AssertionError(f"`bk {shlex.join(words)}` is no command: {errors.getvalue() or error!r}") from None


def check_mention(words: list[str]) -> None:
    """Noun, verb and options of a command that prose mentions exist; arguments may be left out."""
    call = f"`bk {' '.join(words)}`"
    if not words or words[0] == "help":
        return
    assert words[0] in cli.COMMANDS, call
    parser = parser_of(words[0])
    verbs = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if verbs and len(words) > 1:
        assert words[1] in verbs[0].choices, call
        parser = verbs[0].choices[words[1]]
    for word in words:
        if word.startswith("--"):
            assert word in parser._option_string_actions, f"{call} has no {word}"


@pytest.mark.parametrize("page", [HOWTO / "README.md", *PAGES], ids=lambda page: page.stem)
def test_every_command_of_a_page_exists(page: pathlib.Path) -> None:
    text = page.read_text()
    calls = [
        words
        for block in blocks_of(text)
        if block.language in ("console", "text")
        for command in block.commands()
        for words in bk_calls(command.line)
    ]
    for words in calls:
        check_call(words)
    for mention in re.findall(r"`bk ([^`]+)`", prose_of(text)):
        check_mention(mention.split())


def test_options_that_do_not_exist_are_noticed() -> None:
    with pytest.raises(AssertionError, match="no command"):
        check_call(["bookie", "drain", "b3", "--dryrun-not"])
    with pytest.raises(AssertionError, match="no --forced"):
        check_mention(["bookie", "gc", "--forced"])
    assert list(bk_calls("BK_TLS=true bk doctor tls && bk status | tail -1  # bk up")) == [
        ["doctor", "tls"],
        ["status"],
    ]


def test_the_list_names_every_page_once_by_its_title() -> None:
    listed = re.findall(r"^\* \[([^\]]+)\]\(([^)]+)\)", (HOWTO / "README.md").read_text(), re.MULTILINE)
    titles = [(page.read_text().splitlines()[0].removeprefix("# "), page.name) for page in PAGES]
    assert sorted(listed) == sorted(titles)


@pytest.mark.parametrize("page", [HOWTO / "README.md", *PAGES], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}"
        if anchor and path.parent == HOWTO:
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
            assert anchor in anchors, f"{page.name} links to {target}#{anchor}"


# -- commands run --------------------------------------------------------------------------------------------------


@contextmanager
def running_cluster(directory: pathlib.Path) -> Iterator[dict[str, str]]:
    """Four bookies with auto-recovery in `directory`, and the ledgers that the pages name; the shell's environment."""
    family = Family()
    (directory / "bin").mkdir()
    program = directory / "bin" / "bk"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m bookies.admin.cli "$@"\n')
    program.chmod(0o755)
    environment = family.environment() | {"BK_AUTO_RECOVERY": "true"}
    environment["PATH"] = f"{program.parent}:{environment['PATH']}"
    try:
        shell(directory, environment, f"bk up --bookies {BOOKIES}")
        write_ledgers(f"file:{directory / 'bk-data' / 'metadata'}")
        deadline = time.monotonic() + PATIENCE_S
        while json.loads(shell(directory, environment, "bk recovery status --json"))["auditor"] is None:
            assert time.monotonic() < deadline, "no auditor"
            time.sleep(0.2)
        yield environment
    finally:
        try:
            bk_process("down", "--directory", directory / "bk-data")
        finally:
            family.wait_gone()


def write_ledgers(uri: str) -> None:
    """Ledgers 0 and later; the one that is explained has as many entries as the page needs."""
    with bk.blocking.connect(uri) as store:
        for number in range(LEDGERS):
            with store.create() as ledger:
                assert ledger.ledger_id == number
                count = EXPLAINED_ENTRIES if number == EXPLAINED else 5
                ledger.append_many([b"entry %d" % entry for entry in range(count)])


def shell(directory: pathlib.Path, environment: dict[str, str], script: str) -> str:
    """Raises if the script does not end with 0."""
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{script}: {done.returncode}\n{done.stdout}"
    return done.stdout


@dataclass(frozen=True)
class Outcome:
    command: Command
    status: int
    lines: tuple[str, ...]


def run_page(directory: pathlib.Path, environment: dict[str, str], text: str) -> list[Outcome]:
    """The commands of all ```console blocks, in order, in one shell."""
    commands = [each for block in blocks_of(text) if block.language == "console" for each in block.commands()]
    with tempfile.TemporaryDirectory(dir=directory) as place:
        script = "".join(
            f"{{ {each.line}\n}} > {place}/{number}.out 2>&1; echo $? > {place}/{number}.status\n"
            for number, each in enumerate(commands)
        )
        shell(directory, environment, script)
        outputs = pathlib.Path(place)
        return [
            Outcome(
                each,
                int((outputs / f"{number}.status").read_text()),
                tuple(line.rstrip() for line in (outputs / f"{number}.out").read_text().rstrip("\n").splitlines()),
            )
            for number, each in enumerate(commands)
        ]


def shape(line: str) -> str:
    """A line without what differs between runs: numbers, signs, times, units, bookies, hosts, paths, columns."""
    line = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "#", line)
    line = re.sub(r"\S+@\S+", "@", line)
    line = re.sub(r"(file:)?/[\w./-]+", "/", line)
    line = re.sub(r"[+-]?\d[\d,.:-]*", "#", line)
    line = re.sub(r"# (B|KiB|MiB|GiB|TiB|ms|s|min|h|d)\b( ago)?", "#", line)
    line = re.sub(r"# (\w+?)(?:ies|y|s)?\b", r"# \1", line)
    return re.sub(r"[ -]+", " ", line).strip()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[pathlib.Path, dict[str, str]]]:
    directory = tmp_path_factory.mktemp("howto")
    with running_cluster(directory) as environment:
        yield directory, environment


@pytest.mark.parametrize("page", runnable_pages(), ids=lambda page: page.stem)
def test_a_page_runs_and_shows_what_is_printed(place: tuple[pathlib.Path, dict[str, str]], page: pathlib.Path) -> None:
    problems = []
    for done in run_page(*place, page.read_text()):
        printed = "\n".join(done.lines)
        if done.status:
            problems.append(f"$ {done.command.line}\nended with {done.status}:\n{printed}")
        elif not is_shown(done.command.shown, done.lines, shape):
            problems.append(f"$ {done.command.line}\nprints something else than {page.name} shows:\n{printed}")
    assert not problems, "\n\n".join([*problems, "python -m tests.live.test_howto --write renews what pages show"])


def test_shapes() -> None:
    assert shape("b1    writable  127.0.0.1:43971  77.8 GiB") == shape("b4  writable  10.0.0.1:1  5 B")
    assert shape("b1  1.2 GiB  +50.0 %") == shape("b1  3.6 KiB  -94.9 %")
    assert is_shown(("b1  writable", ANY), ("b2   writable", "b3   down"), shape)
    assert is_shown(("1 ledger checked ...",), ("20 ledgers checked, 0 with problems",), shape)
    assert not is_shown(("b1  writable",), ("b1  down",), shape)
    assert not is_shown(("one",), ("one", "two"), shape)


# -- renewing ------------------------------------------------------------------------------------------------------


def renewed(text: str, outcomes: list[Outcome]) -> str:
    """The page with the outputs that are not as shown replaced by the whole present ones."""
    left = iter(outcomes)
    for block in [block for block in blocks_of(text) if block.language == "console"]:
        for command in block.commands():
            done = next(left)
            if is_shown(command.shown, done.lines, shape):
                continue
            head = f"{block.indent}$ {command.line}\n"
            old = head + "".join(f"{block.indent}{line}".rstrip() + "\n" for line in command.shown)
            new = head + "".join(f"{block.indent}{line}".rstrip() + "\n" for line in done.lines)
            assert old in text, f"renew it by hand: {command.line}"
            text = text.replace(old, new, 1)
    return text


def main() -> None:
    """Renew the outputs of all pages."""
    with tempfile.TemporaryDirectory() as name, running_cluster(pathlib.Path(name)) as environment:
        for page in runnable_pages():
            text = page.read_text()
            new = renewed(text, run_page(pathlib.Path(name), environment, text))
            if new != text:
                page.write_text(new)
                print(f"renewed {page.name}")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    main()
