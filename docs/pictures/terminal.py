"""Draws what a command printed as a terminal window in SVG.

    make demo | python docs/pictures/terminal.py 'make demo' > docs/pictures/demo.svg

Each line read is passed on to the standard error as it comes. Lines that show a time at
their start are set off by colour; what is longer than the window is cut with an ellipsis.
"""

from __future__ import annotations

import re
import sys
from html import escape

COLUMNS = 104
CHAR, LINE, PAD, BAR = 7.25, 18, 16, 30  # pixels
EVENT = re.compile(r"^( *[\d.]+ s)  (\w+(?: \w+)?) +(.*)$")
COLOURS = {"node lost": "#ff7b72", "regrouped": "#7ee787", "grown": "#7ee787"}


def row(line: str) -> str:
    """One line as SVG text runs."""
    if len(line) > COLUMNS:
        line = line[: COLUMNS - 1] + "…"
    if found := EVENT.match(line):
        when, event, text = found.groups()
        colour = COLOURS.get(event, "#79c0ff")
        gap = " " * (len(line) - len(text) - len(when) - 2 - len(event))
        return (
            f'<tspan fill="#8b949e">{escape(when)}</tspan>  '
            f'<tspan fill="{colour}">{escape(event)}</tspan>{gap}{escape(text)}'
        )
    return escape(line)


def window(title: str, lines: list[str]) -> str:
    width = COLUMNS * CHAR + 2 * PAD
    height = BAR + 2 * PAD + LINE * (len(lines) + 1)
    rows = [f'<tspan fill="#8b949e">$</tspan> {escape(title)}', *map(row, lines)]
    texts = "\n".join(
        f'<text x="{PAD}" y="{BAR + PAD + LINE * i + 8}">{text}</text>'
        for i, text in enumerate(rows)
    )
    dots = "".join(
        f'<circle cx="{18 + 20 * i}" cy="15" r="6" fill="{colour}"/>'
        for i, colour in enumerate(["#ff5f56", "#ffbd2e", "#27c93f"])
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">\n'
        f"<title>{escape(title)}</title>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>{dots}\n'
        f'<g font-family="ui-monospace, SFMono-Regular, Menlo, DejaVu Sans Mono, monospace" '
        f'font-size="12" fill="#e6edf3" xml:space="preserve">\n{texts}\n</g>\n</svg>\n'
    )


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: COMMAND | terminal.py 'COMMAND' > PICTURE.svg", file=sys.stderr)
        return 2
    lines = []
    for line in sys.stdin:
        sys.stderr.write(line)
        lines.append(line.rstrip("\n"))
    if not lines:
        print("terminal.py: nothing was printed", file=sys.stderr)
        return 1
    sys.stdout.write(window(sys.argv[1], lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
