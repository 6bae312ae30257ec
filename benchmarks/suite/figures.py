"""What runs give: figures, their medians and spreads, ratios of pairs, and whether what was asked is reached.

Nothing here measures anything.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.suite.limits import Limit, Limits

PAIRS_MIN = 5  # that succeeded: medians of fewer decide nothing


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that a case measures.

    `key`: its name in the results of a run. `more_is_better`: False for times, costs and memory. `ratio_min`: how many
    times better than the reference it has to be. `bound`: the value it has to reach by itself: at least, or at most
    when less is better. `limit`: what the machine allows, from what was measured of it.
    """

    key: str
    unit: str
    more_is_better: bool = True
    ratio_min: float | None = None
    bound: float | None = None
    limit: Callable[[Limits], Limit] | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one contestant. `setting`: what the reference ran with. `values`: by key; empty when it failed."""

    case: str
    setting: str
    contestant: str
    pair: int
    values: dict[str, float] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of the runs that did not fail: median, smallest, largest."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one contestant beside the reference at its best setting. `ratio`: above 1 is better than it.

    `pairs`: how many it is the median of; of a figure that is judged by itself, how many runs. `is_quick`: runs were
    too short to judge by.
    """

    case: str
    figure: Figure
    contestant: str
    setting: str
    reference: Spread | None
    found: Spread | None
    ratio: float | None
    failed: tuple[int, int]
    runs: tuple[int, int]
    is_asked: bool
    pairs: int
    is_quick: bool = False
    limit: Limit | None = None

    @property
    def asked(self) -> str:
        """What has to hold, as text; empty when nothing has to."""
        if not self.is_asked:
            return ""
        if self.figure.ratio_min is not None:
            return f"{self.figure.ratio_min:.3g} times"
        if self.figure.bound is not None:
            return f"{'at least' if self.figure.more_is_better else 'at most'} {self.figure.bound:g} {self.figure.unit}"
        return ""

    @property
    def is_met(self) -> bool | None:
        """Whether that holds; None: nothing is asked, or there is nothing or too little to judge by."""
        if not self.asked or self.is_quick or self.pairs < PAIRS_MIN:
            return None
        if self.figure.ratio_min is not None:
            return None if self.ratio is None else self.ratio >= self.figure.ratio_min
        assert self.figure.bound is not None
        assert self.found is not None
        if self.figure.more_is_better:
            return self.found.median >= self.figure.bound
        return self.found.median <= self.figure.bound

    @property
    def verdict(self) -> str:
        """`is_met` as text, or why there is none; empty when nothing is asked."""
        if not self.asked:
            return ""
        if self.pairs == 0:
            return "-"
        if self.is_quick:
            return "too short runs"
        if self.pairs < PAIRS_MIN:
            return "too few pairs"
        return "yes" if self.is_met else "no"

    @property
    def share_of_limit(self) -> float | None:
        """How near to what the machine allows: 1 is there."""
        if self.limit is None or self.found is None or not self.limit.value or not self.found.median:
            return None
        share = self.found.median / self.limit.value
        return share if self.figure.more_is_better else 1 / share


def spread(values: Sequence[float]) -> Spread | None:
    """None without values."""
    return Spread(statistics.median(values), min(values), max(values)) if values else None


def ratios_of_pairs(reference: dict[int, float], found: dict[int, float], *, more_is_better: bool) -> list[float]:
    """Those of runs with the same pair number; above 1: `found` is better."""
    pairs = [(reference[pair], found[pair]) for pair in reference if pair in found]
    return [(b / a if more_is_better else a / b) for a, b in pairs if a > 0 and b > 0]


def compare(
    runs: Sequence[Run],
    case: str,
    figure: Figure,
    contestant: str,
    reference: str,
    *,
    is_asked: bool = True,
    is_quick: bool = False,
    limits: Limits | None = None,
) -> Row:
    """One row. Among the settings that the reference ran with, its best for this figure counts."""
    settings = list(dict.fromkeys(run.setting for run in runs if run.case == case))
    best: tuple[float, str] | None = None
    for setting in settings:
        middle = spread(list(_values(runs, case, setting, reference, figure.key).values()))
        if middle is not None:
            goodness = middle.median if figure.more_is_better else -middle.median
            if best is None or goodness > best[0]:
                best = goodness, setting
    setting = best[1] if best else settings[0] if settings else ""
    ours = _values(runs, case, setting, contestant, figure.key)
    theirs = _values(runs, case, setting, reference, figure.key)
    counts = [
        [bool(run.failure) for run in runs if (run.case, run.setting, run.contestant) == (case, setting, name)]
        for name in (reference, contestant)
    ]
    ratios = ratios_of_pairs(theirs, ours, more_is_better=figure.more_is_better) if reference != contestant else []
    return Row(
        case,
        figure,
        contestant,
        setting,
        spread(list(theirs.values())) if reference != contestant else None,
        spread(list(ours.values())),
        statistics.median(ratios) if ratios else None,
        (sum(counts[0]), sum(counts[1])),
        (len(counts[0]), len(counts[1])),
        is_asked,
        len(ours) if figure.ratio_min is None else len(ratios),
        is_quick,
        figure.limit(limits) if figure.limit is not None and limits is not None else None,
    )


def _values(runs: Sequence[Run], case: str, setting: str, contestant: str, key: str) -> dict[int, float]:
    """By pair."""
    wanted = case, setting, contestant
    return {
        run.pair: run.values[key]
        for run in runs
        if (run.case, run.setting, run.contestant) == wanted and not run.failure and key in run.values
    }
