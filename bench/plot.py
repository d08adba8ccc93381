"""Draws results of `make bench` as SVG files for docs/: bench/plot.py RESULTS.json docs/"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 48, 56
INK, GRID = "#333333", "#dddddd"
COLOURS = ("#1f6fb4", "#c05020")
# Where the reader's system is dark.
DARK = f"""<style>@media (prefers-color-scheme: dark) {{
rect {{ fill: #0d1117 }}
line {{ stroke: #30363d }}
text {{ stroke: #0d1117 }}
text[fill="{INK}"] {{ fill: #e6edf3 }}
[fill="{COLOURS[0]}"] {{ fill: #58a6ff }}
[stroke="{COLOURS[0]}"] {{ stroke: #58a6ff }}
[fill="{COLOURS[1]}"] {{ fill: #f0883e }}
[stroke="{COLOURS[1]}"] {{ stroke: #f0883e }}
}}</style>"""

Series = list[tuple[float, list[float]]]  # x, and all measurements of y


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    results = json.loads(Path(sys.argv[1]).read_text())
    named: dict[str, Series] = {}
    for row in results["rows"]:
        found = re.fullmatch(r"(\d+) nodes: (.*outcome)", row["name"])
        if row["case"] == "scale" and found:
            named.setdefault(found[2], []).append((float(found[1]), row["ours"]["values"]))
    if not named:
        print("there are no results of the case `scale`", file=sys.stderr)
        return 1
    machine = results["machine"]
    title = "One round at one control plane: all nodes at once"
    under = f"{machine['cpu']}, {machine['cores']} cores for server and nodes"
    path = Path(sys.argv[2]) / "scaling.svg"
    path.write_text(chart(title, under, "nodes", "seconds", named))
    print(f"written to {path}")
    return 0


def chart(title: str, under: str, across: str, up: str, named: dict[str, Series]) -> str:
    """Returns a chart: a dot a measurement, a line through the medians."""
    most_x = max(x for series in named.values() for x, _ in series)
    most_y = max(max(ys) for series in named.values() for _, ys in series)
    step_x, step_y = _step(most_x), _step(most_y)
    most_x, most_y = _above(most_x, step_x), _above(most_y, step_y)

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + x / most_x * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y / most_y * (HEIGHT - TOP - BOTTOM),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' font-family="sans-serif" font-size="12" fill="{INK}">',
        DARK,
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 20, title, size=15),
        _text(LEFT, 36, under, size=11),
        _text(WIDTH / 2, HEIGHT - 10, across, anchor="middle"),
        '<g transform="rotate(-90)">',
        _text(-(TOP + HEIGHT - BOTTOM) / 2, 16, up, anchor="middle"),
        "</g>",
    ]
    for i in range(round(most_x / step_x) + 1):
        x, y = at(i * step_x, 0)
        parts.append(_line(x, y, x, TOP, GRID))
        parts.append(_text(x, y + 16, f"{i * step_x:g}", anchor="middle"))
    for i in range(round(most_y / step_y) + 1):
        x, y = at(0, i * step_y)
        parts.append(_line(x, y, WIDTH - RIGHT, y, GRID))
        parts.append(_text(x - 6, y + 4, f"{i * step_y:g}", anchor="end"))
    for i, (name, series) in enumerate(sorted(named.items())):
        colour = COLOURS[i % len(COLOURS)]
        middle = [at(x, sorted(ys)[len(ys) // 2]) for x, ys in sorted(series)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in middle)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        for n, ys in series:
            for value in ys:
                x, y = at(n, value)
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>')
        parts.append(_text(LEFT + 12, TOP + 16 + 16 * i, name, colour=colour))
    return "\n".join([*parts, "</svg>", ""])


def _step(most: float) -> float:
    """A round distance of grid lines: five to ten of them."""
    step = 10.0**-9
    while True:
        for factor in (1, 2, 5):
            if most / (step * factor) <= 10:
                return step * factor
        step *= 10


def _above(most: float, step: float) -> float:
    lines = -(-most // step)
    return lines * step


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(
    x: float, y: float, text: str, size: int = 12, anchor: str = "start", colour: str = INK
) -> str:
    """A text with a rim, so that no line runs through it."""
    safe = text.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
        f' fill="{colour}" stroke="white" stroke-width="4" paint-order="stroke">{safe}</text>'
    )


if __name__ == "__main__":
    sys.exit(main())
