"""Style enforced: the layer ladder, no import cycles, banned calls outside the ports, dead modules, long functions.

Source: style 2, 4 and 8.
"""

from __future__ import annotations

import ast
import pathlib

import pytest

SOURCE = pathlib.Path(__file__).parent.parent / "src" / "bookies"
MODULES = sorted(SOURCE.rglob("*.py"))

# A package may import from lines above its own, from itself, and from what stands after the arrow.
LADDER: list[dict[str, set[str]]] = [
    {"errors": set(), "model": {"errors"}, "config": {"errors", "model"}},
    {"kernels": set()},
    {"wire": set(), "protocol": set(), "runtime": set()},
    {"storage": set(), "metadata": set()},
    {"bookie": set(), "client": set(), "apache": set()},
    {"replication": {"client"}, "log": {"client"}},
    {"sim": set(), "spark": set()},
    {"admin": set()},
    {"": set()},  # the package itself: re-exports
]
LEVEL = {name: level for level, names in enumerate(LADDER) for name in names}
# `storage` and `metadata` do not speak the wire; `protocol` sees neither bytes on a wire nor a clock.
FORBIDDEN = {("storage", "wire"), ("metadata", "wire"), ("protocol", "wire"), ("protocol", "runtime")}
# Who starts a process may bring in the real world.
MAY_IMPORT_AIO = {"admin", "spark", "runtime", "client/blocking.py", "client/connect.py", "bookie/main.py"}

BANNED_MODULES = {
    "socket",
    "time",
    "random",
    "threading",
    "subprocess",
    "fcntl",
    "secrets",
    "uuid",
    "tempfile",
    "shutil",
}
BANNED_CALLS = {"open", "os.open", "os.fsync", "os.fdatasync", "os.urandom", "os.listdir", "datetime.now"}
IO_ALLOWED = {"runtime", "sim", "admin", "spark"}
IO_ALLOWED_FILES = {
    "metadata/embedded.py": {"time", "threading", "secrets", "uuid"},  # SQLite is its own port; leases are wall time
    "client/blocking.py": {"threading"},
}


def package_of(path: pathlib.Path) -> str:
    parts = path.relative_to(SOURCE).parts
    if len(parts) > 1:
        return parts[0]
    return "" if parts[0] in ("__init__.py", "__main__.py") else parts[0].removesuffix(".py")


def imports_of(path: pathlib.Path) -> list[tuple[int, str, bool]]:
    """(line, dotted name, is lazy) of every import; lazy ones stand inside a function."""
    tree = ast.parse(path.read_text())
    found: list[tuple[int, str, bool]] = []

    def visit(node: ast.AST, lazy: bool) -> None:
        for child in ast.iter_child_nodes(node):
            inner = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            if isinstance(child, ast.Import):
                found.extend((child.lineno, alias.name, lazy) for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                found.append((child.lineno, child.module, lazy))
                if child.module.startswith("bookies"):
                    found.extend((child.lineno, f"{child.module}.{alias.name}", lazy) for alias in child.names)
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            visit(child, inner)

    visit(tree, False)
    return found


def test_layers() -> None:
    problems = []
    for path in MODULES:
        own = package_of(path)
        for line, name, _ in imports_of(path):
            if not name.startswith("bookies."):
                continue
            other = name.split(".")[1]
            if other == own or other not in LEVEL:
                continue
            allowed = LEVEL[other] < LEVEL[own] or other in LADDER[LEVEL[own]][own]
            if not allowed or (own, other) in FORBIDDEN:
                problems.append(f"{path.relative_to(SOURCE)}:{line} imports {name}")
    assert not problems, "\n".join(problems)


def test_only_starters_import_the_real_world() -> None:
    problems = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in MODULES
        for line, name, _ in imports_of(path)
        if name.startswith("bookies.runtime.aio")
        and package_of(path) not in MAY_IMPORT_AIO
        and str(path.relative_to(SOURCE)) not in MAY_IMPORT_AIO
    ]
    assert not problems, "\n".join(problems)


def test_no_import_cycles() -> None:
    names = {
        ".".join(("bookies", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in MODULES
    }
    edges = {
        name: {other for _, other, lazy in imports_of(path) if other in names and other != name and not lazy}
        for name, path in names.items()
    }
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for other in sorted(edges[name]):
                walk(other, (*trail, name))
            done.add(name)

    for name in sorted(names):
        walk(name, ())


def test_banned_calls() -> None:
    problems = []
    for path in MODULES:
        relative = str(path.relative_to(SOURCE))
        if package_of(path) in IO_ALLOWED:
            continue
        allowed = IO_ALLOWED_FILES.get(relative, set())
        for line, name, _ in imports_of(path):
            root = name.split(".")[0]
            if root in BANNED_MODULES and root not in allowed and name != "random.Random":
                problems.append(f"{relative}:{line} imports {name}")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in BANNED_CALLS and not allowed:
                problems.append(f"{relative}:{node.lineno} calls {ast.unparse(node.func)}")
    assert not problems, "\n".join(problems)


def test_every_module_is_used_and_documented() -> None:
    text = {path: path.read_text() for path in MODULES}
    problems = []
    for path, content in text.items():
        if path.name == "__init__.py":
            continue
        if not ast.get_docstring(ast.parse(content)):
            problems.append(f"{path.relative_to(SOURCE)} has no docstring")
        dotted = ".".join(("bookies", *path.relative_to(SOURCE).with_suffix("").parts))
        parent, _, name = dotted.rpartition(".")
        used = any(
            other != path and (dotted in body or (f"from {parent} import" in body and name in body))
            for other, body in text.items()
        )
        if not used and name not in ("__main__", "cli", "main"):
            problems.append(f"{path.relative_to(SOURCE)} is used by no other module")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_functions_and_files_stay_short(path: pathlib.Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 700, f"{len(lines)} lines: does it still hold one idea?"
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 80, f"{node.name} is {length} lines long"
