"""The hours of the year as a picture: days across, hours of the day down, the colour is the mean delay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

FIRST = date(2013, 1, 1)
DAYS = 365
LEFT, TOP, WIDTH, HEIGHT = 64, 78, 3, 14  # of the field; of one hour
STEPS = (0, 5, 10, 20, 30, 45, 60, 90)  # minutes
COLOURS = ("#1f5f8b", "#5b9bbf", "#a9cfe0", "#e6eef0", "#fbe3c0", "#f7b97a", "#ec7f4a", "#cf4030", "#7d1128")
HOURS = 19  # from 5 o'clock on; later than midnight nothing is scheduled
BARS = 70  # height of the days' bars
INK, PALE = "#222222", "#8a8a8a"
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def draw(rows: Sequence[Mapping[str, Any]]) -> str:
    """SVG. `rows`: hour, origin, flights, cancelled, late, delay (minutes in all)."""
    flown: dict[tuple[int, int], int] = defaultdict(int)
    delay: dict[tuple[int, int], int] = defaultdict(int)
    cancelled: dict[int, int] = defaultdict(int)
    total = minutes = 0
    for row in rows:
        when = datetime.fromisoformat(row["hour"])
        day = (when.date() - FIRST).days
        flown[day, when.hour] += row["flights"] - row["cancelled"]
        delay[day, when.hour] += row["delay"]
        cancelled[day] += row["cancelled"]
        total += row["flights"]
        minutes += row["delay"]
    mean = {place: delay[place] / count for place, count in flown.items() if count}
    all_flown = max(1, sum(flown.values()))
    title = "Departures from New York in 2013: mean delay by day and scheduled hour"
    text = (
        f"{total:,} flights, {sum(cancelled.values()):,} cancelled; {minutes / all_flown:.1f} minutes late on average"
    )
    height = TOP + HOURS * HEIGHT + BARS + 92
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + DAYS * WIDTH + 30} {height}" '
            'font-family="Helvetica, Arial, sans-serif">',
            '<rect width="100%" height="100%" fill="white"/>',
            _text(LEFT, 30, title, 20, INK),
            _text(LEFT, 52, text, 13, PALE),
            *_field(mean),
            *_axes(),
            *_bars(cancelled),
            *_legend(height - 22),
            "</svg>\n",
        ]
    )


def _row(hour: int) -> int:
    """Nothing is scheduled between midnight and 5, so the picture begins at 5."""
    return TOP + (hour - 5) % 24 * HEIGHT


def _field(mean: Mapping[tuple[int, int], float]) -> list[str]:
    """One path a colour: seven thousand rectangles would be half a megabyte."""
    paths: dict[str, list[str]] = {colour: [] for colour in COLOURS}
    for (day, hour), minutes in sorted(mean.items()):
        if (hour - 5) % 24 < HOURS:
            colour = COLOURS[sum(minutes > step for step in STEPS)]
            paths[colour].append(f"M{LEFT + day * WIDTH} {_row(hour)}h{WIDTH}v{HEIGHT - 1}h-{WIDTH}z")
    return [f'<path fill="{colour}" d="{"".join(path)}"/>' for colour, path in paths.items() if path]


def _axes() -> list[str]:
    bottom = TOP + HOURS * HEIGHT
    parts = [_text(LEFT - 8, _row(hour) + 11, f"{hour:02}:00", 11, PALE, "end") for hour in (5, 8, 11, 14, 17, 20, 23)]
    for number, name in enumerate(MONTHS):
        x = LEFT + (date(2013, number + 1, 1) - FIRST).days * WIDTH
        parts.append(f'<path d="M{x} {TOP - 6}V{bottom + BARS + 24}" stroke="{PALE}" stroke-width="0.5"/>')
        parts.append(_text(x + 4, TOP - 4, name, 12, INK))
    return parts


def _bars(cancelled: Mapping[int, int]) -> list[str]:
    top = TOP + HOURS * HEIGHT + 20
    most = max(cancelled.values(), default=0) or 1
    path = "".join(
        f"M{LEFT + day * WIDTH} {top + BARS}h{WIDTH}v-{BARS * count / most:.1f}h-{WIDTH}z"
        for day, count in sorted(cancelled.items())
        if count
    )
    parts = [f'<path fill="{INK}" d="{path}"/>', _text(LEFT - 8, top + BARS, "cancelled", 11, PALE, "end")]
    chosen: list[int] = []
    for day in sorted(cancelled, key=lambda day: -cancelled[day]):
        # Names for the worst days, where there is room for one.
        if len(chosen) < 4 and all(abs(day - other) > 25 for other in chosen):
            chosen.append(day)
            when = FIRST + timedelta(days=day)
            y = top + BARS - BARS * cancelled[day] / most
            label = f"{when.day} {MONTHS[when.month - 1]}: {cancelled[day]:,}"
            parts.append(_text(LEFT + (day + 2) * WIDTH, max(y + 9, top + 9), label, 11, INK))
    return parts


def _legend(y: int) -> list[str]:
    parts = [_text(LEFT - 8, y + 10, "minutes", 11, PALE, "end")]
    for number, colour in enumerate(COLOURS):
        parts.append(f'<rect x="{LEFT + 56 * number}" y="{y}" width="56" height="12" fill="{colour}"/>')
        if number:
            parts.append(_text(LEFT + 56 * number, y - 4, str(STEPS[number - 1]), 10, PALE, "middle"))
    return parts


def _text(x: float, y: float, text: str, size: int, colour: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y:.0f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{text}</text>'
