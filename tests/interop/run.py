"""The interop suite: our client and Apache's, in v2 and v3, on our bookies, on Apache's, and on both, over ZooKeeper.

    make interop                                       # everything once, minutes
    make interop ARGS='--cells fencing --runs 20'      # one row, twenty times
    make interop ARGS=--write                          # and the table to docs/reference/compatibility.md

Each layout has a ZooKeeper root for each kind of cluster; cells share them. Results are kept in --results, a line for
each cell, so that the table can be made of several runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator

from tests.apache.zookeeper import zookeeper_server
from tests.interop import cells, table
from tests.interop.cells import CLIENTS, Stage, User
from tests.interop.processes import Bookie, Client, java_client, our_client

# The layout that each of Apache's versions is tried with, unless --layouts and --versions say otherwise.
PLAN = (("hierarchical", "4.17.3"), ("longhierarchical", "4.18.0"), ("flat", "4.16.6"))
BOOKIES = {"ours": ("ours",) * 3, "java": ("java",) * 3, "mixed": ("ours", "java") * 2}
QUORUMS = {"ours": (2, 2, 2), "java": (2, 2, 2), "mixed": (3, 3, 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--layouts", help="comma-separated: hierarchical, longhierarchical, flat")
    parser.add_argument("--versions", help="of Apache's jars, comma-separated, one for each layout or one for all")
    parser.add_argument("--kinds", default="ours,java,mixed", help="of clusters, comma-separated")
    parser.add_argument("--writers", default=",".join(CLIENTS), help="comma-separated")
    parser.add_argument("--cells", default="all", help="comma-separated names; quiet, kills, all")
    parser.add_argument("--runs", type=int, default=1, help="of each cell with kills, in a row")
    parser.add_argument("--results", type=pathlib.Path, help="a file to add a line to for each cell")
    parser.add_argument("--table", action="store_true", help="run nothing: only the table of --results")
    parser.add_argument("--write", action="store_true", help="write the table to docs/reference/compatibility.md")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the processes")
    arguments = parser.parse_args()
    if not os.environ.get("BOOKIES_APACHE_CACHE"):
        parser.error(
            "BOOKIES_APACHE_CACHE names no folder to keep Apache's jars in (100 MB a version); make interop sets it"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bookies-interop-"))
    results: list[table.Result] = table.read(arguments.results)
    try:
        for layout, version in [] if arguments.table else _plan(arguments):
            _run_layout(arguments, folder / f"{layout}-{version}", layout, version, results)
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"kept {folder}")
    text = table.text(results)
    print(text)
    if arguments.write:
        table.write(text)
    return 1 if any(each.failures for each in results) else 0


def _plan(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    layouts = arguments.layouts.split(",") if arguments.layouts else [layout for layout, _ in PLAN]
    versions = arguments.versions.split(",") if arguments.versions else [dict(PLAN)[layout] for layout in layouts]
    return list(zip(layouts, versions * len(layouts) if len(versions) == 1 else versions, strict=True))


def _chosen(arguments: argparse.Namespace) -> list[Callable[[Stage, str], None]]:
    groups = {"quiet": cells.QUIET, "kills": cells.KILLS, "all": cells.QUIET + cells.KILLS}
    everything = {cell.__name__.replace("_", " "): (cell,) for cell in groups["all"]} | groups
    names = [name.strip().replace("_", " ") for name in arguments.cells.split(",")]
    if unknown := [name for name in names if name not in everything]:
        sys.exit(f"no cell is called {unknown[0]!r}; there are {', '.join(everything)}")
    return [cell for name in names for cell in everything[name]]


def _run_layout(
    arguments: argparse.Namespace, folder: pathlib.Path, layout: str, version: str, results: list[table.Result]
) -> None:
    with layout_stages(folder, layout, version, arguments.kinds.split(",")) as stages:
        for stage in stages:
            for cell in _chosen(arguments):
                for writer in arguments.writers.split(","):
                    runs = arguments.runs if cell in cells.KILLS else 1
                    result = _run_cell(stage, cell, writer, runs)
                    results.append(result)
                    table.append(arguments.results, result)


def _run_cell(stage: Stage, cell: Callable[[Stage, str], None], writer: str, runs: int) -> table.Result:
    result = table.Result(stage.layout, stage.version, stage.kind, cell.__name__, writer)
    start = time.monotonic()
    for turn in range(runs):
        stage.turn = turn
        try:
            cell(stage, writer)
            result.passes += 1
        except cells.NotThere as reason:
            result.missing = str(reason)
        except Exception as error:  # noqa: BLE001  (the next cell runs all the same)
            result.failures += 1
            result.reason = f"{type(error).__name__}: {error}"
            traceback.print_exc()
    seconds = time.monotonic() - start
    outcome = result.missing or (f"{result.failures} FAILED" if result.failures else f"{result.passes} passed")
    print(
        f"{stage.layout} {stage.version} {stage.kind} {cell.__name__} {writer}: {outcome}, {seconds:.1f} s", flush=True
    )
    return result


@contextlib.contextmanager
def layout_stages(folder: pathlib.Path, layout: str, version: str, kinds: list[str]) -> Iterator[list[Stage]]:
    """A cluster of each kind beside one ZooKeeper, and the clients; all are gone at the end."""
    folder.mkdir(parents=True)
    (folder / "zookeeper").mkdir()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(zookeeper_server(folder / "zookeeper"))
        made: dict[str, Client] = {}

        def new_client(name: str) -> Client:
            client = our_client(folder) if name.startswith("ours") else java_client(version, folder)
            stack.callback(client.kill)
            return client

        for name in ("ours", "java"):
            made[name] = new_client(name)
        stages = []
        for kind in kinds:
            uri = f"zk+{layout}://{server.address}/{kind}"
            made["ours" if kind == "ours" else "java"].ask("init", uri=uri, wire="v3")
            bookies: dict[str, Bookie] = {}
            for number, each in enumerate(BOOKIES[kind]):
                bookie = Bookie(each, f"{each}-{number}", folder / f"{kind}-{number}", uri, version=version)
                stack.callback(bookie.kill)
                bookie.launch()
                bookies[bookie.name] = bookie
            users = {name: User(name, made[name.partition("-")[0]], uri) for name in CLIENTS}
            stages.append(Stage(layout, version, kind, uri, users, bookies, QUORUMS[kind], new_client))
        for stage in stages:
            for bookie in stage.bookies.values():
                bookie.wait_ready()
            stage.wait_writable()
        yield stages


if __name__ == "__main__":
    sys.exit(main())
