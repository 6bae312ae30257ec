"""Pages made from the code are current; the README's own names exist."""

from __future__ import annotations

import inspect
import os
import pathlib
import re
import subprocess
import sys
import textwrap
from typing import Any, Literal

import pytest
from tests.fakes.scripts import load_script
from tests.fakes.world import World, play

import bookies

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.mark.parametrize("script", ["generate.py", "drawings.py", "chart.py"])
def test_generated_pages_are_current(script: str) -> None:
    if script == "generate.py" and sys.version_info >= (3, 13):
        pytest.skip("argparse prints options in another form since Python 3.13")
    done = subprocess.run(
        [sys.executable, f"docs/{script}", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_method_is_documented() -> None:
    generate = load_script("docs/generate.py")
    kinds = [each for name in bookies.__all__ if inspect.isclass(each := getattr(bookies, name))]
    assert not [
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name, member in generate.public_members(kind).items()
        if inspect.isfunction(member) and not inspect.getdoc(member)
    ]


def test_what_public_methods_return_is_public() -> None:
    """And so has a section, with its fields, in docs/reference/api.md."""
    generate = load_script("docs/generate.py")
    kinds = [each for name in bookies.__all__ if inspect.isclass(each := getattr(bookies, name))]
    missing = set()
    for kind in kinds:
        texts = list(generate.fields_of(kind).values())
        for member in generate.public_members(kind).values():
            function = member.fget if isinstance(member, property) else member
            if inspect.isfunction(function):
                texts.append(str(inspect.signature(function).return_annotation))
        scope = vars(sys.modules[kind.__module__])
        for name in re.findall(r"\w+", " ".join(texts)):
            found = scope.get(name)
            if inspect.isclass(found) and found.__module__.startswith("bookies."):
                missing |= {name} - set(bookies.__all__)
    assert not missing


def test_signatures_read_as_they_were_written() -> None:
    generate = load_script("docs/generate.py")

    def example(a: Literal["x"], b: bytes = b"", *, c: str = "y", d: str | None = None) -> list[int]:
        raise NotImplementedError

    shown = "(a: Literal['x'], b: bytes = b'', *, c: str = 'y', d: str | None = None) -> list[int]"
    assert generate._signature(example).replace('"', "'") == shown


def test_the_example_of_reading_works_as_printed() -> None:
    page = (ROOT / "docs/explanation/reading.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    scope: dict[str, Any] = {}
    printed: list[int] = []
    exec("async def example(store, print):\n" + textwrap.indent(code, "    ") + "    return news, batch", scope)

    async def act(world: World) -> None:
        news, batch = await scope["example"](await world.client(), lambda entry_id, payload: printed.append(entry_id))
        assert (news.last_add_confirmed, news.entry.payload) == (1999, b"entry 1999")
        assert batch.entry_ids == range(1000, 1050)
        assert printed == [*range(1500, 2000), *range(11), *range(2000)]

    play(act)


def test_links_lead_somewhere() -> None:
    """Links between documents name a file that exists, and an anchor that is one of its headings."""
    problems = []
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").glob("*.md")):
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", path.read_text()):
            page = (path.parent / target) if target else path
            if not page.exists():
                problems.append(f"{path.relative_to(ROOT)} links to {target}")
            elif anchor and page.suffix == ".md" and anchor not in anchors_of(page):
                problems.append(f"{path.relative_to(ROOT)} links to {target}#{anchor}")
    assert not problems, "\n".join(problems)


def anchors_of(page: pathlib.Path) -> set[str]:
    """Return the anchors that a page's headings get, numbered where a heading repeats."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        count = 0
        while (name := f"{anchor}-{count}" if count else anchor) in anchors:
            count += 1
        anchors.add(name)
    return anchors


def test_every_make_verb_of_the_documents_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    text = "".join((ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md", "tests/README.md"))
    for verb in re.findall(r"`make\s([\w-]+)", text):
        assert re.search(rf"^{verb}:", makefile, re.MULTILINE), verb


def test_names_of_the_contributors_page_exist() -> None:
    """Paths, capitalized and private names; a name "in" a module is defined there."""
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    codes = {path: (ROOT / path).read_text() for path in tracked if path.endswith(".py") and (ROOT / path).exists()}
    words = set(re.findall(r"\w+", "\n".join([*codes.values(), (ROOT / "Makefile").read_text()])))
    problems = []
    for name in re.findall(r"`([\w./-]+)`", text):
        if name.endswith("/"):
            is_known = any(f"/{name}" in f"/{path}" for path in tracked)
        elif name.endswith((".py", ".md", ".toml", ".js")):
            is_known = any(f"/{path}".endswith(f"/{name}") for path in tracked)
        else:
            is_known = not re.match(r"_|[A-Z]", name) or set(name.split(".")) <= words
            is_known |= name.startswith("_") and any(word.endswith(name) for word in words)  # units, such as `_max`
        if not is_known:
            problems.append(name)
    for name, module in re.findall(r"`(\w+)` in `([\w/]+\.py)`", text):
        definition = re.compile(rf"^({name}\b.*=|class {name}\b|(async )?def {name}\b)", re.MULTILINE)
        if not any(definition.search(code) for path, code in codes.items() if f"/{path}".endswith(f"/{module}")):
            problems.append(f"{name} in {module}")
    assert not problems, problems


def test_tests_that_pages_name_exist() -> None:
    """As `live/test_x.py::test_y`, below tests/."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for path, name in re.findall(r"`(\w[\w/]*\.py)::(\w+)", page.read_text()):
            assert f"def {name}(" in (ROOT / "tests" / path).read_text(), f"{page.name} names {path}::{name}"


def test_no_machine_or_registry_is_named() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    words = [word for word in (os.environ.get("HOME", ""), "pypi" + ".org", "/work" + "/") if len(word) > 5]
    for name in tracked:
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".pyx", ".h") and path.is_file():
            text = path.read_text()
            for word in words:
                assert word not in text, f"{name} names {word}"
