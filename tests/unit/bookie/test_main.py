"""The limit of open files that a bookie's process gives itself."""

from __future__ import annotations

import resource

import pytest

from bookies.bookie import main

ANY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1024, 20_000), (20_000, 20_000)),
        ((1024, 1_048_576), (65_536, 1_048_576)),
        ((1024, ANY), (65_536, ANY)),
        ((100_000, 1_048_576), None),
        ((ANY, ANY), None),
        ((1024, 1024), None),
    ],
)
def test_open_files_are_raised_as_far_as_they_may(
    before: tuple[int, int], after: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: before)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: calls.append(limits))
    main.raise_open_files()
    assert calls == ([] if after is None else [after])
