"""Small charts as inline SVG, in the page's colours; they say their numbers when pointed at.

Everything that is written comes from numbers or is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

Scale = Callable[[float], float]  # a number → its place in the picture

# twelve hues that can be told apart on light and on dark
COLOURS = (
    *("#4477aa", "#ee6677", "#228833", "#b8a029", "#3fb6dc", "#aa3377"),
    *("#bb7733", "#7f7f7f", "#44aa99", "#8866dd", "#dd8800", "#d45fb0"),
)
# from low to high, for values: violet to yellow, as viridis
LEVELS = ("#5b2f91", "#414487", "#2a788e", "#22a884", "#7ad151", "#fde725")
LEFT, BOTTOM, TOP, RIGHT = 44, 30, 8, 10


@dataclass(frozen=True)
class Line:
    """One line: points (x, y, what to say of it)."""

    name: str
    colour: str
    points: Sequence[tuple[float, float, str]]
    dots: bool = True
    dashed: bool = False


def colour(number: int) -> str:
    """The colour of the method with this number."""
    return COLOURS[number % len(COLOURS)]


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between `low` and `high`."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= rough)
    first = math.ceil(low / step)
    return [step * i for i in range(first, math.floor(high / step) + 1)]


def short_number(value: float) -> str:
    """1500000 as 1.5M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def line_chart(
    lines: Sequence[Line], *, title: str, x: str, y: str, width: int = 340, height: int = 220
) -> str:
    """Lines with axes; every point says its numbers when pointed at."""
    xs = [point[0] for line in lines for point in line.points]
    ys = [point[1] for line in lines for point in line.points]
    if not xs:
        return ""
    x_range, y_range = (min(xs), max(xs)), (min(0.0, *ys), max(ys))
    px, py = (
        _scale(x_range, LEFT, width - RIGHT),
        _scale(y_range, height - BOTTOM, TOP),
    )
    parts = [_axes(x_range, y_range, x, y, width, height)]
    for line in lines:
        places = [(px(point[0]), py(point[1]), point[2]) for point in line.points]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b, _ in places)
        dash = ' stroke-dasharray="4 3"' if line.dashed else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="1.6"'
            f"{dash}><title>{escape(line.name)}</title></polyline>"
        )
        if line.dots:
            parts += [
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="{line.colour}">'
                f"<title>{escape(said)}</title></circle>"
                for a, b, said in places
            ]
    return _svg(title, parts, width, height)


def interval_chart(
    rows: Sequence[tuple[str, str, float, float, float]], *, title: str, x: str, width: int = 520
) -> str:
    """Estimates with intervals, one row each: (name, colour, value, low, high)."""
    if not rows:
        return ""
    height = 26 * len(rows) + BOTTOM + TOP
    low, high = min(0.0, *(r[3] for r in rows)), max(r[4] for r in rows)
    left = min(200, 12 + 7 * max(len(r[0]) for r in rows))
    px = _scale((low, high), left, width - RIGHT)
    bottom = height - BOTTOM
    parts = [_x_axis((low, high), px, x, left, width, height)]
    for number, (name, hue, value, least, most) in enumerate(rows):
        y = TOP + 26 * number + 13
        said = f"{name}: {value:.1f} ({least:.1f} to {most:.1f})"
        parts.append(
            f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{escape(name)}</text>'
            f"<g><title>{escape(said)}</title>"
            f'<rect x="{px(least):.1f}" y="{y - 6}" width="{max(1.0, px(most) - px(least)):.1f}" '
            f'height="12" rx="3" fill="{hue}" opacity="0.35"/>'
            f'<circle cx="{px(value):.1f}" cy="{y}" r="4" fill="{hue}"/></g>'
        )
    parts.append(f'<line class="axis" x1="{left}" x2="{left}" y1="{TOP}" y2="{bottom}"/>')
    return _svg(title, parts, width, height)


def dot_map(
    places: Sequence[tuple[float, float]], values: Sequence[float], *, title: str, size: int = 150
) -> str:
    """Dots in a square, coloured by value from the 2nd to the 98th percentile, high ones on top.

    One path for each colour: a page may hold hundreds of these.
    """
    if not places:
        return ""
    xs, ys = zip(*places, strict=True)
    px, py = _scale((min(xs), max(xs)), 5, size - 5), _scale((min(ys), max(ys)), size - 5, 5)
    ordered = sorted(values)
    low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.02, 0.98))
    dots: list[list[str]] = [[] for _ in LEVELS]
    for x, y, value in zip(xs, ys, values, strict=True):
        share = 0.0 if high <= low else (value - low) / (high - low)
        level = min(len(LEVELS) - 1, max(0, int(share * len(LEVELS))))
        dots[level].append(f"M{px(x):.0f} {py(y):.0f}h0")
    parts = [
        f'<path d="{"".join(drawn)}" stroke="{hue}"/>'
        for drawn, hue in zip(dots, LEVELS, strict=True)
        if drawn
    ]
    group = f'<g class="dots"><title>{escape(title)}</title>{"".join(parts)}</g>'
    frame = f'<rect class="frame" width="{size}" height="{size}" rx="4"/>'
    return _svg(title, [frame, group], size, size)


def _scale(span: tuple[float, float], start: float, stop: float) -> Scale:
    low, high = span
    size = (high - low) or 1.0
    return lambda value: start + (value - low) / size * (stop - start)


def _axes(
    xs: tuple[float, float], ys: tuple[float, float], x: str, y: str, width: int, height: int
) -> str:
    py, bottom = _scale(ys, height - BOTTOM, TOP), height - BOTTOM
    parts = [_x_axis(xs, _scale(xs, LEFT, width - RIGHT), x, LEFT, width, height)]
    for tick in ticks(*ys):
        at = py(tick)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text x="{LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{short_number(tick)}</text>'
        )
    middle = (TOP + bottom) / 2
    parts.append(
        f'<line class="axis" x1="{LEFT}" x2="{LEFT}" y1="{TOP}" y2="{bottom}"/>'
        f'<text x="11" y="{middle}" text-anchor="middle" transform="rotate(-90 11 {middle})">'
        f"{escape(y)}</text>"
    )
    return "".join(parts)


def _x_axis(xs: tuple[float, float], px: Scale, x: str, left: int, width: int, height: int) -> str:
    bottom = height - BOTTOM
    marks = "".join(
        f'<text x="{px(tick):.1f}" y="{bottom + 13}" text-anchor="middle">'
        f"{short_number(tick)}</text>"
        for tick in ticks(*xs)
    )
    return (
        f'<line class="axis" x1="{left}" x2="{width - RIGHT}" y1="{bottom}" y2="{bottom}"/>{marks}'
        f'<text x="{(left + width) / 2}" y="{height - 4}" text-anchor="middle">{escape(x)}</text>'
    )


def _svg(title: str, parts: Sequence[str], width: int, height: int) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
