"""Every scenario file gives the answers it records, and every mutant of the protocol is caught by its scenario."""

from __future__ import annotations

import importlib
import os
import pathlib
import sys
from types import ModuleType

import pytest
from tests.scenarios import runner

HERE = pathlib.Path(__file__).parent
FILES = sorted(HERE.glob("*/*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_scenario(path: pathlib.Path) -> None:
    if os.environ.get("BOOKIES_UPDATE_SCENARIOS"):
        runner.rewrite(path)
    _, steps = runner.parse(path.read_text())
    for number, (step, played) in enumerate(zip(steps, runner.play(steps), strict=True), 1):
        assert played.expected == step.expected, f"step {number}: {step.commands}"


# (what is wrong, module, the right text, the wrong text, the scenario that notices). Source: client-protocol 8.4.
MUTANTS = [
    (
        "deliver while changing",
        "add",
        "if self.state is not _CONFIRMING:\n            return ()\n        first",
        "if self.error is not None:\n            return ()\n        first",
        "add/x31_nothing_confirmed_while_changing",
    ),
    (
        "one-phase resend: unblock and deliver before everything is undone",
        "add",
        "        for position in replaced:\n            self._acked[position] = IdSet",
        "        self.state = AddState.CONFIRMING\n        early = self._deliver()\n"
        "        self.state = AddState.CHANGING\n        for position in replaced:\n"
        "            self._acked[position] = IdSet",
        "add/x27_undo_everything_before_confirming",
    ),
    (
        "count acks by bookie instead of position and bookie",
        "add",
        "        if self.ensemble[position] != bookie:\n            return ()\n        acked",
        "        if bookie in self.ensemble:\n            position = self.ensemble.index(bookie)\n        acked",
        "add/x43_position_and_bookie_must_match",
    ),
    (
        "fragment start = last add pushed + 1",
        "add",
        "return [ChangeEnsemble(self.head + 1,",
        "return [ChangeEnsemble(self.last_add_pushed + 1,",
        "add/x28_second_failure_while_changing",
    ),
    (
        "fragment start = last add confirmed",
        "add",
        "return [ChangeEnsemble(self.head + 1,",
        "return [ChangeEnsemble(self.head,",
        "add/x30_append_while_changing",
    ),
    (
        "re-target before the metadata store has agreed",
        "add",
        "        self._follow(AddEvent.CHANGE_REQUESTED)\n",
        "        self._follow(AddEvent.CHANGE_REQUESTED)\n        self.ensemble = tuple('new' if p in failed else b "
        "for p, b in enumerate(self.ensemble))\n",
        "add/x32_late_failure",
    ),
    (
        "confirm out of order",
        "add",
        "        bound = self._quorum_bound(first)\n",
        "        bound = max([self._quorum_bound(i) for i in range(first, self._sent_bound)] or [first])\n",
        "add/confirm_in_order",
    ),
    (
        "acks of a replaced bookie are kept",
        "add",
        "            self._acked[position] = IdSet(self._quorums.next_stored(position, first))\n",
        "",
        "add/x30_append_while_changing",
    ),
    (
        "no delivery after an empty change",
        "add",
        "        effects.extend(self._deliver())\n",
        "        effects.extend(self._deliver() if replaced else ())\n",
        "add/x29_second_report_of_a_replaced_bookie",
    ),
    (
        "late failures forgotten",
        "add",
        "        if not lacking:\n            self._replacement.late.update(failed)\n",
        "        if not lacking:\n",
        "add/x32_late_failure",
    ),
    (
        "failures during a change forgotten",
        "add",
        "            self._replacement.report(failed)\n",
        "            pass\n",
        "add/x28_second_failure_while_changing",
    ),
    (
        "close on a recovery's error",
        "add",
        "if self._write_back is None and self.metadata.state",
        "if self.metadata",
        "add/write_back_never_closes",
    ),
    (
        "advancing header LAC in recovery",
        "add",
        "return self.last_add_confirmed if self._write_back is None else self._write_back.start",
        "return self.last_add_confirmed",
        "add/write_back",
    ),
    (
        "coverage by total count",
        "quorum",
        "    size = len(known)\n",
        "    size = len(known)\n    return sum(known) >= write_quorum - ack_quorum + 1\n",
        "fence/x21_coverage_is_not_a_count",
    ),
    (
        "limbo or any error counts as known",
        "fence",
        "if isinstance(error, NEGATIVE):",
        "if not isinstance(error, Unauthorized):",
        "fence/errors_are_not_knowledge",
    ),
    (
        "bad digest counts as known",
        "fence",
        "if isinstance(error, NEGATIVE):",
        "if isinstance(error, NEGATIVE) or type(error).__name__ == 'DigestMismatch':",
        "fence/x50_bad_digest",
    ),
    (
        "no floor under the start",
        "fence",
        "return max(last_add_confirmed, metadata.last_fragment_first_entry - 1)",
        "return last_add_confirmed",
        "fence/x6_floor",
    ),
    (
        "errors as negatives",
        "recover",
        "self._negatives += isinstance(error, NEGATIVE)",
        "self._negatives += 1",
        "recover/x3_errors_are_not_negatives",
    ),
    (
        "limbo as negative",
        "recover",
        "self._negatives += isinstance(error, NEGATIVE)",
        "self._negatives += isinstance(error, NEGATIVE) or type(error).__name__ == 'DataUnknown'",
        "recover/x45_limbo",
    ),
    (
        "absent on fewer than Qw - Qa + 1 negatives",
        "quorum",
        "return write_quorum - ack_quorum + 1",
        "return write_quorum - ack_quorum",
        "recover/x45_limbo",
    ),
    (
        "entries behind a gap are kept",
        "recover",
        "            else:\n                self.is_ended = True",
        "            elif verdict is Verdict.ABSENT and self._next_kept + 1 in self._verdicts:\n"
        "                self._next_kept += 1\n            else:\n                self.is_ended = True",
        "recover/x10_gap_in_the_tail",
    ),
    (
        "a bookie that was replaced in this change may be chosen again",
        "placement",
        "unwanted = list(exclude)",
        "unwanted = []",
        "placement/replace",
    ),
]
# Module -> its room, in the order in which they import each other.
PROTOCOL = {
    "intervals": "quorums",
    "quorum": "quorums",
    "ledger": "ledger",
    "add": "ledger",
    "read": "ledger",
    "fence": "ledger",
    "recover": "ledger",
    "placement": "placement",
}


def load_mutant(module: str, right: str, wrong: str) -> dict[str, ModuleType]:
    """Load the protocol's modules with one change in one of them, beside the real ones."""
    mutants: dict[str, ModuleType] = {}
    rooms = {room: ModuleType(f"mutant_room_{room}") for room in PROTOCOL.values()}
    for room, mutant in rooms.items():
        real = importlib.import_module(f"bookies.protocol.{room}")
        mutant.__dict__.update({name: getattr(real, name) for name in real.__all__})
        sys.modules[mutant.__name__] = mutant
    for name, room in PROTOCOL.items():
        dotted = f"bookies.protocol.{room}.{name}"
        real = importlib.import_module(dotted)
        assert real.__file__ is not None
        text = pathlib.Path(real.__file__).read_text()
        if name == module:
            assert text.count(right) == 1, f"the mutant no longer applies: {right!r}"
            text = text.replace(right, wrong)
        for other, its_room in PROTOCOL.items():
            text = text.replace(f"bookies.protocol.{its_room}.{other} import", f"mutant_protocol_{other} import")
            text = text.replace(f"bookies.protocol.{its_room} import", f"mutant_room_{its_room} import")
        mutant = ModuleType(f"mutant_protocol_{name}")
        sys.modules[mutant.__name__] = mutants[dotted] = mutant
        exec(compile(text, f"mutant of {real.__file__}", "exec"), mutant.__dict__)
        exported = {key: value for key, value in vars(mutant).items() if key in vars(rooms[room])}
        rooms[room].__dict__.update(exported)
    return mutants


@pytest.mark.parametrize(("what", "module", "right", "wrong", "scenario"), MUTANTS, ids=[each[0] for each in MUTANTS])
def test_mutant_is_caught(what: str, module: str, right: str, wrong: str, scenario: str) -> None:
    mutants = load_mutant(module, right, wrong)
    _, steps = runner.parse((HERE / f"{scenario}.txt").read_text())
    try:
        played = runner.play(steps, lambda name: mutants[name])
    except Exception:  # noqa: BLE001
        return  # A mutant that falls over is caught too.
    assert [step.expected for step in played] != [step.expected for step in steps], f"not noticed: {what}"


def test_no_change_is_no_mutant() -> None:
    """The machinery itself does not make scenarios fail."""
    mutants = load_mutant("quorum", "    size = len(known)\n", "    size = len(known)\n")
    for path in FILES:
        _, steps = runner.parse(path.read_text())
        assert [step.expected for step in runner.play(steps, lambda name: mutants[name])] == [
            step.expected for step in steps
        ]
