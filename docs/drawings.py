"""Drawings of the code, made from its imports: docs/images/packages.svg and docs/images/rooms-PACKAGE.svg.

`render()` returns every drawing as text, and reads nothing but the sources under src/bookies. `make docs` writes them;
`python docs/drawings.py --check` reports whether the files are current.

A box is a package, a room (a sub-folder of a package) or a module that lies in no room. A box stands above everything
that it imports. An arrow that follows from others is left out: with A -> B and B -> C there is no arrow A -> C. Imports
for type checking alone do not count. An import that closes a cycle is drawn dashed.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import html
import itertools
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping

ROOT = pathlib.Path(__file__).parent.parent
SOURCE = ROOT / "src" / "bookies"
IMAGES = ROOT / "docs" / "images"
VALUES = ("errors", "units", "model", "config", "transitions")  # modules beside the packages, drawn as one box
ROOMS_OF = ("storage", "client", "metadata", "protocol", "replication", "bookie")
SUFFIXES = (".py", ".pyx", ".h")

BOX_HEIGHT = 52
LEVEL_HEIGHT = 104
GAP = 26  # between two boxes of a level
LANE = 14  # what an arrow takes on a level that it only passes
MARGIN = 28
TITLE_HEIGHT = 54
LETTER = 8.6  # width of a letter of a name
ROUNDS = 24  # of ordering

STYLE = """
.paper{fill:#ffffff;stroke:#d8dee6}
.box{fill:#eef3fa;stroke:#5b7fb0;stroke-width:1.2}
.pure{fill:#edf7ef;stroke:#5c9a6a}
.module{fill:#f7f8fa;stroke:#8a94a3}
.share{fill:#5b7fb0;opacity:.55}
.pure-share{fill:#5c9a6a;opacity:.55}
.module-share{fill:#8a94a3;opacity:.55}
.name{fill:#1b2430;font:600 14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}
.lines{fill:#5a6675;font:12px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}
.title{fill:#1b2430;font:600 16px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}
.arrow{fill:none;stroke:#8593a6;stroke-width:1.4}
.head{fill:#8593a6;stroke:none}
.cycle{stroke:#b4552d;stroke-dasharray:5 4}
@media (prefers-color-scheme: dark){
.paper{fill:#12171e;stroke:#2b3541}
.box{fill:#1b2738;stroke:#6f95c9}
.pure{fill:#18291e;stroke:#6fb383}
.module{fill:#1d232b;stroke:#7d8896}
.share{fill:#6f95c9}
.pure-share{fill:#6fb383}
.module-share{fill:#7d8896}
.name,.title{fill:#e6ebf2}
.lines{fill:#a3afbe}
.arrow{stroke:#77869a}
.head{fill:#77869a}
.cycle{stroke:#e08a5f}
}
"""


@dataclasses.dataclass
class Box:
    """One box of a drawing. `kind`: the CSS class, "box", "pure" or "module"."""

    name: str
    lines: int = 0
    kind: str = "box"

    @property
    def caption(self) -> str:
        step = 100 if self.lines >= 1000 else 10  # rounded, so that not every change of the code changes a drawing
        return f"{max(step, round(self.lines / step) * step):,} lines"

    @property
    def width(self) -> float:
        return max(len(self.name) * LETTER, len(self.caption) * 7.0) + 30


# -- reading the code ----------------------------------------------------------------------------------------------


def module_names(path: pathlib.Path) -> tuple[str, ...]:
    """Return the parts of a module's name below `bookies`: ("storage", "index", "slots")."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports(path: pathlib.Path) -> Iterator[tuple[str, ...]]:
    """Yield the modules of `bookies` that a module imports, lazily too, but not for type checking alone."""
    pending: list[ast.AST] = [ast.parse(path.read_text())] if path.suffix == ".py" else []
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")[1:]) for alias in node.names if alias.name.startswith("bookies."))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "bookies":
            base = tuple(node.module.split(".")[1:])
            for alias in node.names:
                there = SOURCE.joinpath(*base, alias.name)
                yield (*base, alias.name) if there.is_dir() or there.with_suffix(".py").exists() else base
        pending.extend(ast.iter_child_nodes(node))


def sources(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for suffix in SUFFIXES for path in folder.rglob(f"*{suffix}"))


def line_count(path: pathlib.Path) -> int:
    return len(path.read_text().splitlines())


def is_pure(paths: Iterable[pathlib.Path]) -> bool:
    """Return whether no module imports asyncio or the ports: no IO, no clock."""
    return not any(
        "import asyncio" in path.read_text() or any(names[:1] == ("runtime",) for names in imports(path))
        for path in paths
    )


def graph(
    folder: pathlib.Path, place_of: Callable[[tuple[str, ...]], str | None]
) -> tuple[dict[str, list[pathlib.Path]], dict[str, set[str]]]:
    """Return the modules of each box, and the boxes that each box imports. `place_of`: the box of a module, or None."""
    members: dict[str, list[pathlib.Path]] = {}
    edges: dict[str, set[str]] = {}
    for path in sources(folder):
        own = place_of(module_names(path))
        if own is None:
            continue
        members.setdefault(own, []).append(path)
        found = edges.setdefault(own, set())
        found.update(place for names in imports(path) if (place := place_of(names)) is not None and place != own)
    return members, {name: others & members.keys() for name, others in edges.items()}


def packages() -> tuple[list[Box], dict[str, set[str]]]:
    def place_of(names: tuple[str, ...]) -> str | None:
        if not names or names[0] == "__main__":
            return None
        return " · ".join(VALUES) if names[0] in VALUES else names[0] if (SOURCE / names[0]).is_dir() else None

    members, edges = graph(SOURCE, place_of)
    boxes = [
        Box(name, sum(map(line_count, paths)), "pure" if is_pure(paths) else "box") for name, paths in members.items()
    ]
    return boxes, edges


def rooms(package: str) -> tuple[list[Box], dict[str, set[str]]]:
    """Return the rooms of a package, and its modules outside of them."""
    folder = SOURCE / package

    def place_of(names: tuple[str, ...]) -> str | None:
        if len(names) < 2 or names[0] != package:
            return None
        return f"{names[1]}/" if (folder / names[1]).is_dir() else f"{names[1]}.py"

    members, edges = graph(folder, place_of)
    boxes = [
        Box(name, sum(map(line_count, paths)), "box" if name.endswith("/") else "module")
        for name, paths in members.items()
    ]
    return boxes, edges


# -- layers --------------------------------------------------------------------------------------------------------


def without_cycles(edges: Mapping[str, set[str]]) -> tuple[dict[str, set[str]], list[tuple[str, str]]]:
    """Split the edges into those that form no cycle and those that close one."""
    kept: dict[str, set[str]] = {name: set() for name in edges}
    closing: list[tuple[str, str]] = []
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        for other in sorted(edges[name]):
            if other in trail or other == name:
                closing.append((name, other))
                continue
            kept[name].add(other)
            if other not in done:
                visit(other, (*trail, name))
        done.add(name)

    for name in sorted(edges, key=lambda each: (sum(each in others for others in edges.values()), each)):
        if name not in done:
            visit(name, ())
    return kept, closing


def reachable(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    below: dict[str, set[str]] = {}

    def visit(name: str) -> set[str]:
        if name not in below:
            below[name] = set().union(*({other} | visit(other) for other in edges[name]))
        return below[name]

    for name in edges:
        visit(name)
    return below


def reduced(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Leave out the edges that follow from others."""
    below = reachable(edges)
    return {
        name: {other for other in others if not any(other in below[between] for between in others)}
        for name, others in edges.items()
    }


def levels(edges: Mapping[str, set[str]]) -> dict[str, int]:
    """Number the boxes: 0 imports nothing; any other is one above its highest import."""
    found: dict[str, int] = {}

    def visit(name: str) -> int:
        if name not in found:
            found[name] = 1 + max((visit(other) for other in edges[name]), default=-1)
        return found[name]

    for name in edges:
        visit(name)
    return found


@dataclasses.dataclass
class Node:
    """A box on its level, or the place where an arrow passes a level."""

    box: Box | None
    level: int
    width: float
    x: float = 0.0  # of the middle
    above: list[Node] = dataclasses.field(default_factory=list)
    below: list[Node] = dataclasses.field(default_factory=list)


def layered(boxes: list[Box], edges: Mapping[str, set[str]]) -> tuple[list[list[Node]], list[list[Node]]]:
    """Return the nodes by level, and each arrow as the nodes that it passes, from the top."""
    level = levels(edges)
    rows: list[list[Node]] = [[] for _ in range(max(level.values()) + 1)]
    nodes = {box.name: Node(box, level[box.name], box.width) for box in boxes}
    for name in sorted(nodes):
        rows[level[name]].append(nodes[name])
    arrows = []
    for name in sorted(edges):
        for other in sorted(edges[name]):
            arrow = [nodes[name]]
            for between in range(level[name] - 1, level[other], -1):
                lane = Node(None, between, LANE)
                rows[between].append(lane)
                arrow.append(lane)
            arrow.append(nodes[other])
            for upper, lower in itertools.pairwise(arrow):
                upper.below.append(lower)
                lower.above.append(upper)
            arrows.append(arrow)
    return rows, arrows


def crossings(rows: list[list[Node]]) -> int:
    count = 0
    for row, lower in zip(rows[1:], rows, strict=False):
        place = {id(node): index for index, node in enumerate(lower)}
        ends = [(at, place[id(other)]) for at, node in enumerate(row) for other in node.below]
        count += sum(one[0] < two[0] and one[1] > two[1] for one in ends for two in ends)
    return count


def order(rows: list[list[Node]]) -> None:
    """Sort each level for few crossings: every node near the middle of its neighbours, in sweeps up and down."""
    best, fewest = [list(row) for row in rows], crossings(rows)
    for round_number in range(ROUNDS):
        is_upward = round_number % 2 == 0
        for index in range(len(rows)) if is_upward else reversed(range(len(rows))):
            beside = index - 1 if is_upward else index + 1
            if not 0 <= beside < len(rows):
                continue
            place = {id(node): at for at, node in enumerate(rows[beside])}
            old = {id(node): at for at, node in enumerate(rows[index])}

            def middle(node: Node, place: dict[int, int] = place, old: dict[int, int] = old) -> float:
                found = [place[id(each)] for each in (*node.below, *node.above) if id(each) in place]
                return sum(found) / len(found) if found else old[id(node)]

            rows[index].sort(key=middle)
        for row in rows:  # neighbours change places where that helps
            for at in range(len(row) - 1):
                before = crossings(rows)
                row[at], row[at + 1] = row[at + 1], row[at]
                if crossings(rows) >= before:
                    row[at], row[at + 1] = row[at + 1], row[at]
        if (count := crossings(rows)) < fewest:
            best, fewest = [list(row) for row in rows], count
    for index, row in enumerate(best):
        rows[index] = row


def spread(rows: list[list[Node]]) -> float:
    """Place every node near its neighbours. Returns the width of the drawing without margins."""
    for row in rows:
        at = 0.0
        for node in row:
            node.x = at + node.width / 2
            at += node.width + GAP
    for round_number in range(200):
        for row in rows if round_number % 2 else reversed(rows):
            wished = {}
            for node in row:
                beside = [(each.x, _pull(node, each)) for each in (*node.above, *node.below)]
                pull = sum(weight for _, weight in beside)
                wished[id(node)] = sum(x * weight for x, weight in beside) / pull if beside else node.x
            _place(row, wished)
    left = min(node.x - node.width / 2 for row in rows for node in row)
    for row in rows:
        for node in row:
            node.x -= left
    return max(node.x + node.width / 2 for row in rows for node in row)


def _pull(one: Node, other: Node) -> int:
    """Weight with which two neighbours are aligned; long arrows have the greatest, so they are straight."""
    return (1, 2, 8)[(one.box is None) + (other.box is None)]


def _place(row: list[Node], wished: Mapping[int, float]) -> None:
    """Move nodes to the wished places as far as order and widths allow; touching nodes move as one group."""
    groups: list[tuple[list[Node], float]] = []  # nodes, and where the middle of the first one is
    for node in row:
        group, start = [node], wished[id(node)]
        while groups:
            others, before = groups[-1]
            if before + _offset([*others, group[0]]) <= start:
                break
            groups.pop()
            group = [*others, *group]
            offsets = [_offset(group[: index + 1]) for index in range(len(group))]
            start = sum(wished[id(each)] - offset for each, offset in zip(group, offsets, strict=True)) / len(group)
        groups.append((group, start))
    for group, start in groups:
        for index, node in enumerate(group):
            node.x = start + _offset(group[: index + 1])


def _offset(nodes: list[Node]) -> float:
    """Distance from the middle of the first node to that of the last, if they touch."""
    return sum((one.width + two.width) / 2 + GAP for one, two in itertools.pairwise(nodes))


# -- drawing -------------------------------------------------------------------------------------------------------


def drawing(title: str, boxes: list[Box], edges: Mapping[str, set[str]]) -> str:
    kept, closing = without_cycles(edges)
    rows, arrows = layered(boxes, reduced(kept))
    order(rows)
    width = max(spread(rows), len(title) * 8.6) + 2 * MARGIN
    height = TITLE_HEIGHT + len(rows) * LEVEL_HEIGHT - (LEVEL_HEIGHT - BOX_HEIGHT) + MARGIN
    most = max(box.lines for box in boxes)
    parts = [f'<path class="arrow" d="{_curve(arrow, height)}"/>' for arrow in arrows]
    parts += [_head(arrow[-1], arrow[-2], height) for arrow in arrows]
    places = {node.box.name: node for row in rows for node in row if node.box is not None}
    for name, other in closing:
        parts.append(f'<path class="arrow cycle" d="{_curve([places[name], places[other]], height)}"/>')
    parts += [_box(node, height, most) for row in rows for node in row if node.box is not None]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{html.escape(title)}">',
            f"<style>{STYLE}</style>",
            f'<rect class="paper" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="10"/>',
            f'<text class="title" x="{MARGIN}" y="34">{html.escape(title)}</text>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _top(node: Node, height: float) -> float:
    return height - MARGIN - BOX_HEIGHT - node.level * LEVEL_HEIGHT


def _ports(node: Node, beside: list[Node], other: Node) -> float:
    """Return where an arrow meets the edge of a box. Arrows share no point, and do not cross there."""
    if node.box is None:
        return MARGIN + node.x
    ranked = sorted(beside, key=lambda each: each.x)
    at = next(index for index, each in enumerate(ranked) if each is other)
    room = min(node.width - 28, 26.0 * (len(ranked) - 1))
    return MARGIN + node.x + (room * (at / (len(ranked) - 1) - 0.5) if len(ranked) > 1 else 0.0)


def _curve(arrow: list[Node], height: float) -> str:
    parts: list[str] = []
    for upper, lower in itertools.pairwise(arrow):
        is_known = lower in upper.below
        x1 = _ports(upper, upper.below, lower) if is_known else MARGIN + upper.x
        x2 = _ports(lower, lower.above, upper) if is_known else MARGIN + lower.x
        y1 = _top(upper, height) + BOX_HEIGHT
        y2 = _top(lower, height) - (7 if lower.box is not None else 0)
        bend = (y2 - y1) * 0.55
        parts.append(f"M{x1:.1f} {y1:.1f}" if not parts else "")
        parts.append(f"C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}")
        if lower.box is None:
            parts.append(f"V{y2 + BOX_HEIGHT:.1f}")
    return "".join(parts)


def _head(node: Node, before: Node, height: float) -> str:
    x, y = _ports(node, node.above, before), _top(node, height) - 1
    return f'<path class="head" d="M{x:.1f} {y:.1f}l-4.5 -8h9z"/>'


def _box(node: Node, height: float, most: int) -> str:
    box = node.box
    assert box is not None
    kind = "box" if box.kind == "box" else f"box {box.kind}"
    share = "share" if box.kind == "box" else f"{box.kind}-share"
    left, top = MARGIN + node.x - node.width / 2, _top(node, height)
    bar = max(2.0, round((node.width - 24) * box.lines / most / 4) * 4.0)
    return (
        f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{node.width:.1f}" height="{BOX_HEIGHT}" rx="7"/>'
        f'<text class="name" x="{MARGIN + node.x:.1f}" y="{top + 21:.1f}" text-anchor="middle">'
        f"{html.escape(box.name)}</text>"
        f'<text class="lines" x="{MARGIN + node.x:.1f}" y="{top + 38:.1f}" text-anchor="middle">{box.caption}</text>'
        f'<rect class="{share}" x="{left + 12:.1f}" y="{top + 44:.1f}" width="{bar:.1f}" height="3" rx="1.5"/>'
    )


def render() -> dict[pathlib.Path, str]:
    """Return every drawing: its path, and its text."""
    found = {IMAGES / "packages.svg": drawing("The packages of bookies (green: no IO)", *packages())}
    for package in ROOMS_OF:
        if (SOURCE / package).is_dir():
            boxes, edges = rooms(package)
            kind = "rooms" if any(box.kind == "box" for box in boxes) else "modules"
            found[IMAGES / f"rooms-{package}.svg"] = drawing(f"The {kind} of {package}", boxes, edges)
    return found


def shape(text: str) -> str:
    """Return a drawing without its counts of lines and their bars, which change with every commit."""
    text = re.sub(r'(<text class="lines"[^>]*>)[^<]*', r"\1", text)
    return re.sub(r'<rect class="share"[^>]*>', "", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a drawing is not current")
    is_check = parser.parse_args().check
    found = render()
    stale = [path for path, text in found.items() if not path.exists() or shape(path.read_text()) != shape(text)]
    for path in stale:
        if is_check:
            print(f"{path.relative_to(ROOT)} is not current: run `make docs`")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found[path])
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
