"""State machines as tables: the code changes a state by its table alone, and uses every event of it."""

from __future__ import annotations

import ast
import enum
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from bookies.bookie import state as bookie_state
from bookies.client.transport import connection
from bookies.protocol.ledger import add
from bookies.transitions import following


class Machine(NamedTuple):
    """A class with a state in `attribute`, which `_follow` changes by the table `TRANSITIONS` of its module."""

    kind: type
    attribute: str
    start: enum.Enum

    @property
    def table(self) -> Mapping[tuple[Any, Any], Any]:
        table: Mapping[tuple[Any, Any], Any] = inspect.getmodule(self.kind).TRANSITIONS  # type: ignore[union-attr]
        return table

    @property
    def events(self) -> type[enum.Enum]:
        return type(next(iter(self.table))[1])


MACHINES = [
    Machine(add.AddPipeline, "state", add.AddState.CONFIRMING),
    Machine(bookie_state.BookieState, "phase", bookie_state.Phase.STARTING),
    Machine(connection.Connection, "state", connection.State.CONNECTING),
]
machines = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.kind.__name__)


@machines
def test_the_table_alone_changes_the_state(machine: Machine) -> None:
    tree = ast.parse(inspect.getsource(inspect.getmodule(machine.kind)))  # type: ignore[arg-type]
    [kind] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == machine.kind.__name__]
    stores = {
        method.name: ast.unparse(node)
        for method in kind.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(method)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and target.attr == machine.attribute
    }
    where = f"self.{machine.attribute}"
    assert stores == {
        "__init__": f"{where} = {machine.start}",
        "_follow": f"{where} = following(TRANSITIONS, {where}, event)",
    }


@machines
def test_the_code_and_the_table_have_the_same_events(machine: Machine) -> None:
    tree = ast.parse(inspect.getsource(machine.kind))
    name = machine.events.__name__
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    }
    assert used == {event.name for _, event in machine.table} == set(machine.events.__members__)


@machines
def test_every_state_is_reached_and_every_other_pair_is_refused(machine: Machine) -> None:
    reached = {machine.start}
    while more := {after for (before, _), after in machine.table.items() if before in reached} - reached:
        reached |= more
    assert reached == set(type(machine.start))
    for state in type(machine.start):
        for event in machine.events:
            if (state, event) in machine.table:
                assert following(machine.table, state, event) is machine.table[state, event]
            else:
                with pytest.raises(AssertionError, match=f"{event.name} is impossible in state {state.name}"):
                    following(machine.table, state, event)
