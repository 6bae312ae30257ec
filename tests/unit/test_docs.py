"""Pages made from the code are current; the README's own names exist."""

from __future__ import annotations

import importlib.util
import inspect
import os
import pathlib
import re
import subprocess
import sys
import textwrap
from typing import Any, Literal

import pytest
from tests.fakes.world import World, play

import bookies

ROOT = pathlib.Path(__file__).parent.parent.parent


def test_generated_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def load_generate() -> Any:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    return generate


def test_every_public_method_is_documented() -> None:
    generate = load_generate()
    kinds = [each for name in bookies.__all__ if inspect.isclass(each := getattr(bookies, name))]
    assert not [
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name, member in generate.public_members(kind).items()
        if inspect.isfunction(member) and not inspect.getdoc(member)
    ]


def test_what_public_methods_return_is_public() -> None:
    """And so has a section, with its fields, in docs/reference/api.md."""
    generate = load_generate()
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
    generate = load_generate()

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


@pytest.mark.parametrize("page", ["README.md", "docs/explanation/architecture.md", "docs/status.md"])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), f"{page} links to {target}"


def test_every_make_verb_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for verb in re.findall(r"`make\s([\w-]+)", (ROOT / "README.md").read_text()):
        assert re.search(rf"^{verb}:", makefile, re.MULTILINE), verb


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
