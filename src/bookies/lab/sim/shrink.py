"""Reduction of a failing run: faults are left out while the same promise still breaks, and the rest is recorded.

The seed determines a fault's name and all its details, so a run can be repeated with a subset of its faults by naming
those that may happen. The recording is JSON: seed, profile, faults and violations. Source of the method: delta
debugging, by halves and then one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from bookies.lab.sim.faults.profiles import PROFILE_NAMES
from bookies.lab.sim.run import Result, simulate

FORMAT = 1
RUN_COUNT_MAX = 80


class UnusableRecording(ValueError):
    """The file is not a recording that `Recording.pack` has written."""


class Recording(Struct, frozen=True):
    """A run that breaks a promise. `faults`: name -> description. `digest`: of its trace when it was recorded."""

    seed: int
    profile: str
    faults: dict[str, str]
    violations: tuple[str, ...]
    digest: str

    @classmethod
    def of(cls, result: Result) -> Recording:
        return cls(result.seed, result.profile, dict(result.faults), tuple(result.violations), result.digest)

    def pack(self) -> str:
        """Return the recording as indented JSON."""
        document = {
            "format": FORMAT,
            "seed": self.seed,
            "profile": self.profile,
            "faults": self.faults,
            "violations": self.violations,
            "digest": self.digest,
        }
        return json.dumps(document, indent=2) + "\n"

    @classmethod
    def parse(cls, text: str) -> Recording:
        """Read a recording. Raises `UnusableRecording`."""
        try:
            document: dict[str, Any] = json.loads(text)
            if document["format"] != FORMAT:
                raise UnusableRecording(f"format {document['format']}, not {FORMAT}")
            if document["profile"] not in PROFILE_NAMES:
                raise UnusableRecording(f"no profile is called {document['profile']}")
            return cls(
                int(document["seed"]),
                str(document["profile"]),
                {str(name): str(description) for name, description in document["faults"].items()},
                tuple(map(str, document["violations"])),
                str(document["digest"]),
            )
        except UnusableRecording:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UnusableRecording(f"not a recorded run: {error!r}") from None

    def replay(self) -> Result:
        """Repeat the run with exactly these faults."""
        return simulate(self.seed, self.profile, only=frozenset(self.faults))


def promises(violations: tuple[str, ...] | list[str]) -> set[str]:
    """Return the names of the broken promises, as in "I-5"."""
    return {violation.partition(":")[0] for violation in violations}


def shrink(
    result: Result, *, run_count_max: int = RUN_COUNT_MAX, on_run: Callable[[int, int], None] | None = None
) -> Recording:
    """Return a run of the same seed with as few faults as suffice to break one of the same promises.

    `on_run(runs, faults)` is called after each run that still breaks one, with the number of runs and of faults left.
    """
    best = Recording.of(result)
    broken = promises(result.violations)
    runs = 0

    def still_breaks(names: list[str]) -> bool:
        nonlocal best, runs
        runs += 1
        again = simulate(result.seed, result.profile, only=frozenset(names))
        if not promises(again.violations) & broken:
            return False
        best = Recording.of(again)
        if on_run is not None:
            on_run(runs, len(best.faults))
        return True

    size = len(best.faults)
    if size and still_breaks([]):
        return best
    while size > 1 and runs < run_count_max:
        size = -(-size // 2)
        at = 0
        while at < len(best.faults) and runs < run_count_max:
            names = list(best.faults)
            if not still_breaks(names[:at] + names[at + size :]):
                at += size
    return best
