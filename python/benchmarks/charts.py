"""Draw a page's chart: horizontal bars with ranges, in groups, as SVG. The same data give the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

_COLORS = ("#3465a4", "#cc6600", "#73a041", "#8a5aa3", "#888888")
_WIDTH, _RIGHT, _BAR, _GAP, _TOP = 760, 110, 15, 10, 62
_STYLE = """<style>
.back { fill: #ffffff } text { fill: #222222 } .grid { stroke: #dddddd } .range { stroke: #222222 }
@media (prefers-color-scheme: dark) {
.back { fill: #1e2129 } text { fill: #dddddd } .grid { stroke: #444444 } .range { stroke: #dddddd }
}
</style>"""


@dataclass(frozen=True)
class Bar:
    """A bar: its series, its value, and the range of the samples. Without one, ``low`` and ``high`` equal ``value``."""

    series: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Chart:
    """A chart: groups of a label and its bars, from top to bottom, and the unit of all values, such as s or %."""

    title: str
    unit: str
    groups: Sequence[tuple[str, Sequence[Bar]]]


def svg(chart: Chart) -> str:
    """Return the chart as an SVG document."""
    series = list(dict.fromkeys(bar.series for _, bars in chart.groups for bar in bars))
    colors = {name: _COLORS[index % len(_COLORS)] for index, name in enumerate(series)}
    left = 24 + 7 * max(len(label) for label, _ in chart.groups)
    most = max(bar.high for _, bars in chart.groups for bar in bars)
    height = _TOP + sum(len(bars) * _BAR + _GAP for _, bars in chart.groups) + 28
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(chart.title)}</title>",
        _STYLE,
        f'<rect class="back" width="{_WIDTH}" height="{height}"/>',
        _text(10, 22, chart.title, size=15),
        *_legend(colors, left),
        *_axis(most, chart.unit, height, left),
    ]
    top = _TOP
    for label, bars in chart.groups:
        lines.append(_text(left - 8, top + len(bars) * _BAR / 2 + 4, label, anchor="end"))
        for bar in bars:
            lines += _bar(bar, most, top, left, chart.unit, colors[bar.series])
            top += _BAR
        top += _GAP
    return "\n".join([*lines, "</svg>"]) + "\n"


def _x(value: float, most: float, left: int) -> float:
    return left + (_WIDTH - left - _RIGHT) * value / most


def _bar(bar: Bar, most: float, top: float, left: int, unit: str, color: str) -> Iterator[str]:
    middle = top + (_BAR - 2) / 2
    low, value, high = (_x(each, most, left) for each in (bar.low, bar.value, bar.high))
    yield f'<rect x="{left}" y="{top}" width="{value - left:.1f}" height="{_BAR - 2}" fill="{color}"/>'
    if bar.low < bar.high:
        ends = f"M{low:.1f} {top + 3}v7M{high:.1f} {top + 3}v7"
        yield f'<path class="range" d="M{low:.1f} {middle}H{high:.1f}{ends}"/>'
    yield _text(high + 5, top + _BAR - 4, f"{_three_digits(bar.value)} {unit}", size=11)


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".removesuffix(".")


def _legend(colors: dict[str, str], left: float) -> Iterator[str]:
    for name, color in colors.items():
        yield f'<rect x="{left:.0f}" y="34" width="10" height="10" fill="{color}"/>'
        yield _text(left + 14, 43, name)
        left += 34 + 7 * len(name)


def _axis(most: float, unit: str, height: int, left: int) -> Iterator[str]:
    bottom = height - 22
    for value in _ticks(most):
        x = _x(value, most, left)
        yield f'<path class="grid" d="M{x:.1f} {_TOP - 4}V{bottom}"/>'
        yield _text(x, bottom + 14, f"{value:g} {unit}", anchor="middle", size=11)


def _ticks(most: float) -> list[float]:
    """Return four to ten round values from 0 on."""
    power = 10.0 ** (len(f"{most:.0f}") - 1) if most >= 1 else 10.0 ** -(len(f"{1 / most:.0f}"))
    step = next(part * power for part in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0) if most / (part * power) <= 8)
    return [round(number * step, 10) for number in range(int(most / step + 1e-9) + 1)]


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
