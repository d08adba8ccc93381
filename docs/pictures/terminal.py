"""Records what a command prints, and draws it as a terminal window in SVG that plays it.

    python docs/pictures/session.py | python docs/pictures/terminal.py > docs/pictures/session.svg

With an argument the command itself is the first line. Each line read is passed on to the
standard error as it comes, and appears in the picture after the same time; a pause of more than
two seconds is shown as two. It plays by CSS alone, in a loop. Where the reader
prefers less motion, or nothing plays, it stands still and shows all lines. Lines
that begin with a time are set off by colour. Lines longer than the window are
cut with an ellipsis.
"""

from __future__ import annotations

import re
import sys
import time
from html import escape

COLUMNS = 104
CHAR, LINE, PAD, BAR = 7.25, 18, 16, 30  # pixels
EVENT = re.compile(r"^( *[\d.]+ s)  (\w+(?: \w+)?) +(.*)$")
COLOURS = {"node lost": "#ff7b72", "regrouped": "#7ee787", "grown": "#7ee787"}
TYPING, PAUSE, REST = 0.5, 2.0, 8.0  # seconds: the beginning, the longest pause, the end


def row(line: str) -> str:
    """One line as SVG text runs."""
    if len(line) > COLUMNS:
        line = line[: COLUMNS - 1] + "…"
    if line.startswith("$ "):
        command = f'<tspan fill="#ffffff" font-weight="600">{escape(line[2:])}</tspan>'
        return f'<tspan fill="#8b949e">$</tspan> {command}'
    if found := EVENT.match(line):
        when, event, text = found.groups()
        colour = COLOURS.get(event, "#79c0ff")
        if "lost:" in text:
            colour = COLOURS["node lost"]
        gap = " " * (len(line) - len(text) - len(when) - 2 - len(event))
        return (
            f'<tspan fill="#8b949e">{escape(when)}</tspan>  '
            f'<tspan fill="{colour}">{escape(event)}</tspan>{gap}{escape(text)}'
        )
    return escape(line)


def shown_at(times: list[float]) -> list[float]:
    """When each line appears, of those at which it came."""
    at, shown = TYPING, []
    for before, now in zip([times[0], *times], times):
        at += min(now - before, PAUSE)
        shown.append(at)
    return shown


def animation(at: list[float]) -> str:
    """Lines appear one after the other, all in one period."""
    whole = at[-1] + REST
    rules = [
        f"@keyframes l{i} {{ 0%, {100 * t / whole:.2f}% {{ opacity: 0 }} "
        f"{100 * t / whole + 0.01:.2f}%, 100% {{ opacity: 1 }} }}"
        for i, t in enumerate(at)
    ]
    names = [f".l{i} {{ animation-name: l{i} }}" for i in range(len(at))]
    return "\n".join(
        [
            "<style>",
            "text { white-space: pre }",
            "@media (prefers-reduced-motion: no-preference) {",
            f"text[class] {{ animation-duration: {whole:.2f}s; "
            "animation-iteration-count: infinite }",
            *rules,
            *names,
            "}",
            "</style>",
        ]
    )


def window(title: str, lines: list[str], at: list[float]) -> str:
    width = COLUMNS * CHAR + 2 * PAD
    height = BAR + 2 * PAD + LINE * len(lines)
    texts = "\n".join(
        f'<text class="l{i}" x="{PAD}" y="{BAR + PAD + LINE * i + 8}">{row(line)}</text>'
        for i, line in enumerate(lines)
    )
    dots = "".join(
        f'<circle cx="{18 + 20 * i}" cy="15" r="6" fill="{colour}"/>'
        for i, colour in enumerate(["#ff5f56", "#ffbd2e", "#27c93f"])
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">\n'
        f"<title>{escape(title)}</title>\n{animation(at)}\n"
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>{dots}\n'
        f'<g font-family="ui-monospace, SFMono-Regular, Menlo, DejaVu Sans Mono, monospace" '
        f'font-size="12" fill="#e6edf3" xml:space="preserve">\n{texts}\n</g>\n</svg>\n'
    )


def main() -> int:
    if len(sys.argv) > 2:
        print("usage: COMMAND | terminal.py ['COMMAND'] > PICTURE.svg", file=sys.stderr)
        return 2
    lines, times = [], []
    if title := " ".join(sys.argv[1:]):
        lines.append(f"$ {title}")
        times.append(time.monotonic())
    for line in sys.stdin:
        times.append(time.monotonic())
        sys.stderr.write(line)
        lines.append(line.rstrip("\n"))
    if not lines:
        print("terminal.py: nothing was printed", file=sys.stderr)
        return 1
    sys.stdout.write(window(title or lines[0].removeprefix("$ "), lines, shown_at(times)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
