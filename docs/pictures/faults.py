"""Draws docs/pictures/faults.svg: how much of six minutes with twenty faults a job trains.

    python docs/pictures/faults.py

The figures are those that docs/warm.md records of `make bench`, case `goodput`.
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "docs" / "pictures" / "faults.svg"
LAUNCHERS = {
    "in place": ("rallypoint run", "--warm --on-failure regroup"),
    "warm": ("rallypoint run --warm", ""),
    "cold": ("rallypoint run", ""),
    "ft_launcher": ("ft_launcher", "nvidia-resiliency-ext"),
}
# The first fault comes after nine seconds, and torchrun made no further step.
TORCHRUN = 100 * 9 / 360

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 800, 210, 150, 76, 46, 26
STYLE = """<style>
text { fill: #1f2328 } .under { fill: #59636e } .trains { fill: #1a7f37 } .lost { fill: #d1242f }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .under { fill: #9198a1 } .trains { fill: #3fb950 } .lost { fill: #f85149 }
.back { fill: #0d1117 } }
</style>"""


def shares() -> dict[str, float]:
    """The share of the time that each kind of worker loses, in percent."""
    page = (ROOT / "docs" / "warm.md").read_text()
    head, lost = re.search(  # type: ignore[union-attr]
        r"^\| \| (.*) \|\n\|[-| ]+\|\n\| time lost \| (.*) \|$", page, re.MULTILINE
    ).groups()
    return {
        kind: float(text.removesuffix(" %"))
        for kind, text in zip(head.split(" | "), lost.split(" | "))
        if kind in LAUNCHERS
    }


def bar(i: int, name: str, under: str, trains: float, says: str) -> str:
    top, whole = TOP + i * ROW, WIDTH - LEFT - RIGHT
    split = LEFT + whole * trains / 100
    middle = top + BAR / 2 + 5
    return "\n".join(
        [
            f'<text x="{LEFT - 12}" y="{middle - 6 * bool(under)}" text-anchor="end">{name}</text>',
            f'<text class="under" x="{LEFT - 12}" y="{middle + 10}" font-size="11"'
            f' text-anchor="end">{under}</text>',
            f'<rect class="trains" x="{LEFT}" y="{top}" width="{split - LEFT:.1f}"'
            f' height="{BAR}"/>',
            f'<rect class="lost" x="{split:.1f}" y="{top}" width="{LEFT + whole - split:.1f}"'
            f' height="{BAR}"/>',
            f'<text x="{LEFT + whole + 12}" y="{middle}">{says}</text>',
        ]
    )


def generate() -> str:
    bars = [
        (*LAUNCHERS[kind], 100 - lost, f"trains {100 - lost:.0f} %")
        for kind, lost in sorted(shares().items(), key=lambda share: share[1])
    ]
    bars.append(("torchrun, c10d", "", TORCHRUN, "no further step"))
    height = TOP + ROW * len(bars)
    title = "Six minutes of training with a fault every 18 seconds"
    under = (
        "a worker, a node, the host, a hang and a preemption in turn; far more often than in life"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
            ' font-family="system-ui, sans-serif" font-size="14">',
            f"<title>{escape(title)}</title>",
            STYLE,
            f'<rect class="back" width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
            f'<text x="16" y="28" font-size="17" font-weight="600">{title}</text>',
            f'<text class="under" x="16" y="50" font-size="12">{under}</text>',
            *(bar(i, *each) for i, each in enumerate(bars)),
            "</svg>",
            "",
        ]
    )


def main() -> int:
    TARGET.write_text(generate())
    return 0


if __name__ == "__main__":
    sys.exit(main())
