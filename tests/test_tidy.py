"""Structure enforced: ladder of packages, order of rooms, no import cycles, sizes, names, banned calls.

A package imports only from lower packages, and a room only from the rooms before it. Only `runtime` and what
implements a port touches clock, files, sockets or random numbers. Source: docs/explanation/architecture.md.
"""

from __future__ import annotations

import ast
import collections
import functools
import pathlib

import pytest

SOURCE = pathlib.Path(__file__).parent.parent / "src" / "bookies"
MODULES = sorted(SOURCE.rglob("*.py"))
UNIT_TESTS = pathlib.Path(__file__).parent / "unit"

# A package may import from lines above its own, from itself, and from what stands after the arrow.
LADDER: list[dict[str, set[str]]] = [
    {
        "errors": set(),
        "units": set(),
        "transitions": set(),
        "model": {"errors"},
        "config": {"errors", "model", "units"},
    },
    {"kernels": set(), "encoding": {"kernels"}, "settings": {"encoding"}},
    {"wire": set(), "protocol": set(), "runtime": set(), "configuration": {"runtime"}},
    {"storage": set(), "metadata": set()},
    {"bookie": set(), "client": set(), "apache": set()},
    {"replication": {"client"}, "distributedlog": set(), "formats": set()},
    {"metrics": set()},
    {"web": set()},
    {"spark": set()},
    {"admin": set()},
    {"lab": set()},
    {"": set()},  # the package itself: re-exports
]
LEVEL = {name: level for level, names in enumerate(LADDER) for name in names}
# `storage` and `metadata` do not speak the wire; `protocol` sees neither bytes on a wire nor a clock.
FORBIDDEN = {("storage", "wire"), ("metadata", "wire"), ("protocol", "wire"), ("protocol", "runtime")}

# Rooms in order: a room imports only from rooms before it. "" stands for the modules of the package's own folder.
ROOMS: dict[str, tuple[str, ...]] = {
    "runtime": ("linux", ""),
    "protocol": ("pacing", "rights", "latency", "quorums", "ledger", "placement", "repair", "log", "payloads"),
    "storage": (
        "disks",
        "records",
        "sealing",
        "journal",
        "identity",
        "cache",
        "entry_log",
        "index",
        "rocksdb",
        "checkpoint",
        "engine",
        "gc",
        "scrub",
        "offline",
        "",
    ),
    "metadata": ("interface", "formats", "shared", "embedded", "zookeeper", "etcd", ""),
    "wire": ("", "sasl"),
    "bookie": ("transport", ""),
    "client": (
        "base",
        "transport",
        "write",
        "read",
        "repair",
        "turns",
        "log/records",
        "log/base",
        "log/consumers",
        "log",
        "",
        "blocking",
    ),
    "replication": ("base", "repair", "auditor", "operator", "daemon"),
    "distributedlog": ("formats", "model", "store", ""),
    "web": ("", "console", "data"),
    "spark": ("base", "read", "write", "", "jobs/shared", "jobs"),
    "admin": ("shared", "cluster", "remote", "verbs", "metadata", "logs", "commands", ""),
    "lab": (
        "sim/world",
        "sim/checkers",
        "sim/clients",
        "sim/faults",
        "sim",
        "sim/scenario",
        "bench",
        "chaos",
        "demo",
        "chaos/soak",
        "commands",
    ),
}
FILES_IN_A_FOLDER_MAX = 16
ROOM_NAMES_MAX = 6
ROOMS_OF_MANY_NAMES = {"distributedlog/formats"}  # a library of formats
ATTRIBUTES_MAX, PARAMETERS_MAX = 14, 6
WIDE_CLASSES = {"LedgerWriter", "Journal", "Served"}  # a part would cost a call for each entry; a table of counts
WIDE_FUNCTIONS = {
    *("append", "consumer", "create", "lead"),  # with keywords
    *("repair_ledger", "recover_bookies", "replicate_fragment", "renew_entries"),  # with keywords
    *("pack_add_frames", "verify_records", "scan", "check_places", "package_entry"),
    *("Handlers.__init__", "Namespace.__init__"),
}

# Who starts a process may bring in the real world.
MAY_IMPORT_AIO = {
    "",
    "admin",
    "lab",
    "spark",
    "runtime",
    "client/blocking/blocking.py",
    "client/connect.py",
    "distributedlog/namespace.py",
    "bookie/main.py",
}

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
IO_ALLOWED = {"runtime", "lab", "admin", "spark"}
IO_ALLOWED_FILES = {
    "formats/registry.py": {"time"},  # Its requests block, in tasks and planners of Spark.
    "metadata/embedded/embedded.py": {"time", "threading", "secrets", "uuid"},  # SQLite; leases are wall time.
    "storage/rocksdb/rocksdb_port.py": {"fcntl", "shutil", "tempfile"},  # RocksDB opens its files itself.
    "client/blocking/blocking.py": {"threading"},
}

# Unit tests whose subject is more than one module of their folder.
ABOUT_SEVERAL_MODULES = {
    "bookie/transport/test_kerberos.py",
    "test_examples.py",  # of examples/
    "admin/test_new_key.py",
    "admin/test_offloaded_ledgers.py",
    "benchmarks/test_endings.py",
    "bookie/test_beside.py",
    "bookie/test_captures.py",
    "bookie/test_checklist.py",
    "bookie/test_damaged_files.py",
    "bookie/test_hostile_client.py",
    "bookie/test_many_ledgers.py",
    "bookie/test_paused.py",
    "bookie/test_spans.py",
    "bookie/test_slow_peers.py",
    "client/log/test_compacting.py",
    "client/log/test_rolling_up.py",
    "client/read/test_near_reads.py",
    "client/test_last_add_confirmed.py",
    "client/test_patience.py",
    "client/test_writer_modes.py",
    "metrics/test_register.py",
    "metrics/test_tables.py",
    "spark/jobs/test_work.py",
    "spark/jobs/test_work_lists.py",
    "storage/test_format_docs.py",
    "test_deploy.py",
    "test_docs.py",
    "test_image.py",
    "test_observe.py",
    "test_release.py",
    "web/data/test_refusals.py",
    "web/test_other_clients.py",
}


@functools.cache
def tree_of(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def nodes_of(path: pathlib.Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


def package_of(path: pathlib.Path) -> str:
    parts = path.relative_to(SOURCE).parts
    if len(parts) > 1:
        return parts[0]
    return "" if parts[0] in ("__init__.py", "__main__.py") else parts[0].removesuffix(".py")


def name_of(path: pathlib.Path) -> str:
    return ".".join(("bookies", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


NAMES = {name_of(path): path for path in MODULES}


@functools.cache
def imports_of(path: pathlib.Path) -> list[tuple[int, str]]:
    """Return (line, dotted name) of every import, lazy and type-only ones included."""
    imports: list[tuple[int, str]] = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            imports.extend((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                imports.append((node.lineno, inner if inner in NAMES or node.module not in NAMES else node.module))
    return imports


def room_of(path: pathlib.Path) -> str:
    """Return the folder below the package, "" for the package's own folder."""
    return "/".join(path.relative_to(SOURCE).parts[1:-1])


def test_layers() -> None:
    problems = []
    for path in MODULES:
        own = package_of(path)
        for line, name in imports_of(path):
            if name == "bookies" and own:
                problems.append(f"{path.relative_to(SOURCE)}:{line} imports the whole package")
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
        for line, name in imports_of(path)
        if name.startswith("bookies.runtime.aio")
        and package_of(path) not in MAY_IMPORT_AIO
        and str(path.relative_to(SOURCE)) not in MAY_IMPORT_AIO
    ]
    assert not problems, "\n".join(problems)


def test_no_import_cycles() -> None:
    """Lazy and type-only imports count: who reads one module of a cycle has to read all."""
    edges = {
        name: {other for _, other in imports_of(path) if other in NAMES and other != name}
        for name, path in NAMES.items()
    }
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for other in sorted(edges[name]):
                walk(other, (*trail, name))
            done.add(name)

    for name in sorted(NAMES):
        walk(name, ())


def test_rooms_import_downwards() -> None:
    problems = []
    for path in MODULES:
        own = package_of(path)
        rooms = ROOMS.get(own, ("",))
        is_face = path.name == "__init__.py" and room_of(path) == ""  # The package's own `__init__` is above its rooms.
        if is_face or own == "":
            continue
        if room_of(path) not in rooms:
            if path.name != "__init__.py":  # A folder of rooms has an `__init__` without imports.
                problems.append(f"{path.relative_to(SOURCE)}: its folder is not in ROOMS")
            continue
        for line, name in imports_of(path):
            target = NAMES.get(name)
            if target is None or package_of(target) != own:
                continue
            if room_of(target) not in rooms or rooms.index(room_of(target)) > rooms.index(room_of(path)):
                problems.append(f"{path.relative_to(SOURCE)}:{line} imports {name} from a later room")
    assert not problems, "\n".join(problems)


def test_folders_stay_small() -> None:
    sizes = collections.Counter(path.parent for path in MODULES if path.name != "__init__.py")
    large = {str(folder.relative_to(SOURCE)): size for folder, size in sizes.items() if size > FILES_IN_A_FOLDER_MAX}
    assert not large, f"split these folders into rooms: {large}"


def test_module_names_are_unique_within_a_package() -> None:
    counts = collections.Counter(
        (path.relative_to(SOURCE).parts[0], path.name) for path in MODULES if path.name != "__init__.py"
    )
    twice = sorted(f"{package}: {name}" for (package, name), count in counts.items() if count > 1)
    assert not twice, "\n".join(twice)


def test_rooms_hand_out_few_names() -> None:
    """A room's `__init__` only re-exports its main names, so that reading it takes a minute."""
    problems = []
    for path in MODULES:
        if path.name != "__init__.py" or room_of(path) == "":
            continue
        tree = tree_of(path)
        assert ast.get_docstring(tree), f"{path.relative_to(SOURCE)} has no docstring"
        if any(isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(tree)):
            problems.append(f"{path.relative_to(SOURCE)} defines something")
        count = sum(len(node.names) for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 0)
        count -= any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
        if count > ROOM_NAMES_MAX and str(path.parent.relative_to(SOURCE)) not in ROOMS_OF_MANY_NAMES:
            problems.append(f"{path.relative_to(SOURCE)} hands out {count} names")
    assert not problems, "\n".join(problems)


def test_banned_calls() -> None:
    problems = []
    for path in MODULES:
        relative = str(path.relative_to(SOURCE))
        if package_of(path) in IO_ALLOWED:
            continue
        allowed = IO_ALLOWED_FILES.get(relative, set())
        for line, name in imports_of(path):
            root = name.split(".")[0]
            if root in BANNED_MODULES and root not in allowed and name != "random.Random":
                problems.append(f"{relative}:{line} imports {name}")
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in BANNED_CALLS and not allowed:
                problems.append(f"{relative}:{node.lineno} calls {ast.unparse(node.func)}")
    assert not problems, "\n".join(problems)


def test_every_module_is_used_and_documented() -> None:
    text = {path: path.read_text() for path in MODULES}
    problems = []
    for path in text:
        if path.name == "__init__.py":
            continue
        if not ast.get_docstring(tree_of(path)):
            problems.append(f"{path.relative_to(SOURCE)} has no docstring")
        dotted = name_of(path)
        parent, _, name = dotted.rpartition(".")
        used = any(
            other != path and name in body and (dotted in body or f"from {parent} import" in body)
            for other, body in text.items()
        )
        if not used and name not in ("__main__", "cli", "main"):
            problems.append(f"{path.relative_to(SOURCE)} is used by no other module")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_functions_and_files_stay_short(path: pathlib.Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 700, f"{len(lines)} lines: does it still hold one idea?"
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 80, f"{node.name} is {length} lines long"


def test_classes_and_signatures_stay_narrow() -> None:
    """Of a class the attributes that its methods set count. Wide ones are to be divided, not listed."""
    problems, listed = [], {*WIDE_CLASSES, *WIDE_FUNCTIONS}
    for path in MODULES:
        for owner in nodes_of(path):
            if isinstance(owner, ast.ClassDef):
                own = {node.attr for node in ast.walk(owner) if isinstance(node, ast.Attribute) and _is_set(node)}
                if len(own) > ATTRIBUTES_MAX:
                    problems.append((owner.name, f"{path}:{owner.lineno} has {len(own)} attributes"))
            for node in ast.iter_child_nodes(owner):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                    count = len(names) - (names[:1] in (["self"], ["cls"]))
                    if count > PARAMETERS_MAX:
                        name = f"{owner.name}.{node.name}" if node.name == "__init__" else node.name  # type: ignore[attr-defined]
                        problems.append((name, f"{path}:{node.lineno} has {count} parameters"))
    assert not [text for name, text in problems if name not in listed]
    assert not listed - {name for name, _ in problems}, "listed for no reason"


def _is_set(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"


def test_unit_tests_mirror_the_source() -> None:
    """A test file has the folder and the name of its module, or the name of its folder if it is about the package."""
    problems = []
    several = set()
    for path in sorted(UNIT_TESTS.rglob("test_*.py")):
        relative = path.relative_to(UNIT_TESTS)
        source = SOURCE.parents[1] if relative.parts[0] == "benchmarks" else SOURCE
        folder, subject = source / relative.parent, path.stem.removeprefix("test_")
        if not folder.is_dir():
            problems.append(f"{relative}: there is no folder {folder}")
        if (folder / f"{subject}.py").exists() or subject == folder.name:
            continue
        several.add(str(relative))
        if str(relative) not in ABOUT_SEVERAL_MODULES:
            problems.append(f"{relative}: its folder has no module {subject}. Rename it, or add it to the list")
    problems.extend(f"{path} is listed for no reason" for path in sorted(ABOUT_SEVERAL_MODULES - several))
    assert not problems, "\n".join(problems)
