"""The model of other machines: constants are found again in what they make, and the lowest limit is named."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from benchmarks import model, scale
from benchmarks.model import Constants, Line, Setup
from benchmarks.suite.limits import Limits

KNOWN = Constants(
    client_us=Line(4.0, 0.5, 0.6),
    bookies_us=Line(0.0, 1.0, 3.0),
    client_read_us=0.5,
    bookies_read_us=Line(0.6, 0.1),
    client_batch_us=80.0,
    bookies_batch_us=60.0,
    journal_bytes=Line(0.0, 700.0, 1100.0),
    log_bytes=Line(0.0, 40.0, 1024.0),
    wire_bytes=Line(0.0, 90.0, 1050.0),
    disk=1.2e9,
    sync_us=900.0,
    ledgers_per_s=800.0,
    free_share=0.95,
    bookie_cores=1.0,
    overlap=3.0,
    read_overlap=2.0,
)
MACHINE = Setup(32, 32, 32, journal=2e9, log=2e9)


def cell(case: str, bookies: int, clients: int, **values: float) -> dict[str, Any]:
    return {
        "case": case,
        "bookies": bookies,
        "clients": clients,
        "size": scale.CASES[case].size,
        "failed": 0,
        "used": 1.9,
        "busy": 2.0,
        "bookie_cores": 0.9,
        "p50_us": 900.0,
        **values,
    }


def measured(known: Constants = KNOWN) -> dict[str, Any]:
    """What a machine without any noise would give that has these constants."""
    cells = []
    for planned in scale.cells(scale.RateLimit()):
        case = scale.CASES[planned.case]
        found = cell(planned.case, planned.bookies, planned.clients)
        quorum = model.quorum_of(found)
        if case in scale.GRID:
            found["entries_per_s"] = model.of_cell(known, 2, found)[0]
        else:
            found["entries_per_s"] = known.ledgers_per_s
        client, bookies = known.client_us.at(case.size, quorum), known.bookies_us.at(case.size, quorum)
        if case.is_read:
            client, bookies = known.client_read_us, known.bookies_read_us.at(0, quorum)
        if case.name == "a ledger an entry":
            client, bookies = client + known.client_batch_us, bookies + known.bookies_batch_us
        found |= {"client_cpu_us": client, "bookies_cpu_us": bookies, "rates": [found["entries_per_s"]]}
        if not case.is_read and case.size:
            journal = known.journal_bytes.at(case.size, quorum) / case.size
            log = known.log_bytes.at(case.size, quorum) / case.size
            found |= {"journal_per_payload": journal, "log_per_payload": log, "written_per_payload": journal + log}
            found |= {"loopback_per_entry": known.wire_bytes.at(case.size, quorum), "disk_mb_s": 300.0}
        cells.append(found)
    limits = dataclasses.asdict(Limits({1: (200.0, 900.0), 3: (500.0, 4000.0)}, known.disk / 1e6, 3000.0, 2500.0))
    # Through JSON, as a file has it.
    return json.loads(json.dumps({"cores": 2, "limits": limits, "cells": cells}))


def test_constants_are_found_again() -> None:
    found = dataclasses.asdict(model.constants(measured()))
    for name, value in dataclasses.asdict(KNOWN).items():
        assert found[name] == pytest.approx(value, rel=1e-3, abs=1e-3), name
    assert model.constants(measured()).bookies_read_us.at(0, 3) == pytest.approx(0.9)


def test_one_run_beside_other_work_moves_a_fit_little() -> None:
    facts = measured()
    facts["cells"][1]["bookies_cpu_us"] *= 20
    assert model.constants(facts).bookies_us.kib == pytest.approx(KNOWN.bookies_us.kib, rel=0.02)
    assert model.constants(facts).bookies_us.replica == pytest.approx(KNOWN.bookies_us.replica, rel=0.02)


def test_no_coefficient_is_negative() -> None:
    rows = [[1.0, 1.0], [1.0, 2.0], [1.0, 4.0]]
    assert model.fit(rows, [1.0, 3.0, 7.0]) == [0.0, pytest.approx(1.5, abs=0.3)]


def test_what_was_interrupted_is_refused() -> None:
    facts = measured()
    facts["cells"] = [each for each in facts["cells"] if each["case"] != "one in flight"]
    with pytest.raises(ValueError, match="no runs of 'one in flight'"):
        model.constants(facts)
    facts = measured()
    facts["cells"] = [each for each in facts["cells"] if each["case"] not in ("add 1 KiB", "add 16 KiB")]
    with pytest.raises(ValueError, match="not the whole grid"):
        model.constants(facts)


@pytest.mark.parametrize(
    ("setup", "size", "cause"),
    [
        (Setup(32, 32, 32), 100, model.CLIENT_CPU),
        (Setup(32, 32, 32), 16384, model.BOOKIE_CPU),
        (Setup(32, 32, 1), 100, model.ONE_CLIENT),
        (Setup(32, 3, 32), 16384, model.ONE_BOOKIE),
        (dataclasses.replace(MACHINE, journal=1e8), 1024, model.JOURNAL),
        (dataclasses.replace(MACHINE, log=1e8), 1024, model.LOG),
        (dataclasses.replace(MACHINE, journal=1e8, is_shared=True), 1024, model.DISK),
        (dataclasses.replace(MACHINE, machines=10, network=1e8), 1024, model.NETWORK),
        (dataclasses.replace(MACHINE, machines=10, ensemble=3), 100, model.ONE_CLIENT),
    ],
)
def test_the_lowest_limit_is_named(setup: Setup, size: int, cause: str) -> None:
    rate, found = model.predict(KNOWN, setup, size)
    assert found == cause
    assert rate <= min(model.limits(KNOWN, setup, size).values())


def test_small_ledgers_are_bound_by_the_metadata_store() -> None:
    few = dataclasses.replace(KNOWN, ledgers_per_s=0.01)
    assert model.predict(few, Setup(32, 32, 32), 16384)[1] == model.METADATA


def test_limits_follow_the_formulas_of_the_document() -> None:
    found = model.limits(KNOWN, dataclasses.replace(MACHINE, machines=10, network=3e9), 1024)
    client, bookies = 4.0 + 3 * (0.5 + 0.6), 3 * (1.0 + 3.0)
    assert found[model.BOOKIE_CPU] == pytest.approx(320 * 0.95 / (client + bookies) * 1e6)
    assert found[model.ONE_CLIENT] == pytest.approx(320 / client * 1e6)
    assert found[model.ONE_BOOKIE] == pytest.approx(320 / bookies * 1e6)
    assert found[model.JOURNAL] == pytest.approx(10 * 2e9 / (3 * 1800))
    assert found[model.LOG] == pytest.approx(10 * 2e9 / (3 * 1064))
    assert found[model.NETWORK] == pytest.approx(10 * 3e9 / (3 * 1140 * 0.9))
    # E10 gives each of its bookies three tenths of the entries of one ledger, E3 all of them.
    one = [model.limits(KNOWN, dataclasses.replace(MACHINE, machines=10, ensemble=each), 1024) for each in (3, 10)]
    assert [each[model.ONE_BOOKIE] for each in one] == [pytest.approx(1e6 / 4), pytest.approx(1e6 / 1.2)]
    assert [each[model.ONE_CLIENT] for each in one] == [pytest.approx(1e6 / client)] * 2


def test_a_batch_is_shared_by_its_entries() -> None:
    alone, ten, many = (model.limits(KNOWN, MACHINE, 100, batch=batch)[model.ONE_CLIENT] for batch in (1, 10, None))
    assert 1 / alone - 1 / many == pytest.approx(80 / 32e6)
    assert 1 / ten - 1 / many == pytest.approx(8 / 32e6)


def test_limits_that_are_near_are_felt_together() -> None:
    assert model.together({"a": 100.0, "b": 100.0}, 1) == (50.0, "a")
    assert model.together({"a": 100.0, "b": 100.0}, 4)[0] == pytest.approx(100 / 2**0.25)
    assert model.together({"a": 100.0, "b": math.inf}, 2) == (100.0, "a")
    assert model.together({"a": 300.0, "b": 100.0}, 8)[0] == pytest.approx(100, rel=0.001)


def test_the_model_meets_what_it_was_made_from() -> None:
    said = model.compared(model.constants(measured()), measured())
    assert "64 of 64 cells are within 25 %; the median is 0 % off." in said
    assert said.count("(1.00)") == 64


def test_the_document_has_the_tables_of_what_was_measured() -> None:
    found = model.tables(json.loads(model.MEASURED.read_text()))
    text = model.DOCUMENT.read_text()
    assert model.put(text, found) == text, "python -m benchmarks.model --write"


def test_a_table_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the table 'measured'"):
        model.put("# Nothing\n", {"measured": "| a |"})
