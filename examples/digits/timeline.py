"""What the demonstration shows: lines with a time, and a progress bar at a terminal."""

from __future__ import annotations

import json
import sys
import time

BAR_WIDTH = 30
WAIT_LINE = 5.0  # seconds between lines that say what is waited for


class Timeline:
    """Prints what happens as it happens, and keeps it for --json.

    With `as_json` nothing is printed until `print_json`. At a terminal the last line is a
    progress bar that is redrawn; elsewhere each tenth of the way is a line.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.entries: list[dict[str, object]] = []
        self._as_json = as_json
        self._tty = sys.stdout.isatty() and not as_json
        self._began = time.time()
        self._bar = ""
        self._tenth = 0
        self._waiting = ""
        self._waited_since = self._said_waiting = 0.0

    def add(self, event: str, text: str, *, at: float | None = None, **fields: object) -> None:
        """Adds an event that happened at time `at` (now if not given), and its line."""
        seconds = max((time.time() if at is None else at) - self._began, 0)
        self.entries.append({"at": round(seconds, 2), "event": event, **fields})
        self._print(f"{seconds:6.1f} s  {event:<12} {text}")

    def progress(self, done: int, of: int, text: str) -> None:
        """Shows how far the training is."""
        filled = BAR_WIDTH * done // of
        bar = (
            f"{'':>10}[{'#' * filled}{'-' * (BAR_WIDTH - filled)}] {100 * done // of:3d} %  {text}"
        )
        if self._tty:
            self._bar = bar
            self._draw("")
        elif 10 * done // of > self._tenth:
            self._tenth = 10 * done // of
            self._print(bar)

    def waiting(self, what: str) -> None:
        """Shows what the demo waits for and for how long. Call it repeatedly."""
        now = time.time()
        if what != self._waiting:
            self._waiting, self._waited_since, self._said_waiting = what, now, now
        line = f"{'':>10}... {what}: {now - self._waited_since:.0f} s"
        if self._tty:
            if line != self._bar:
                self._bar = line
                self._draw("")
        elif now - self._said_waiting >= WAIT_LINE:
            self._said_waiting = now
            self._print(line)

    def finish(self) -> None:
        """Removes the bar."""
        self._bar = ""
        self._draw("")

    def print_json(self, **result: object) -> None:
        print(json.dumps({**result, "timeline": self.entries}, indent=2))

    def _print(self, line: str) -> None:
        if self._as_json:
            return
        if self._tty:
            self._draw(line + "\n")
        else:
            print(line, flush=True)

    def _draw(self, text: str) -> None:
        if self._tty:
            sys.stdout.write(f"\r\033[K{text}{self._bar}")
            sys.stdout.flush()
