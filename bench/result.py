"""What a case measures, and how it is shown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Sample:
    """Repetitions of one measurement, in the unit of its row."""

    values: list[float] = field(default_factory=list)
    note: str = ""  # instead of values, such as "never"; or what to know about them

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    def as_json(self) -> dict[str, object]:
        return {
            "median": self.median,
            "min": min(self.values, default=None),
            "max": max(self.values, default=None),
            "values": [round(v, 6) for v in self.values],
            "note": self.note,
        }

    def text(self, unit: str) -> str:
        if not self.values:
            return self.note or "-"
        if len(self.values) == 1:
            return f"{_number(self.values[0])} {unit}"
        low, high = _number(min(self.values)), _number(max(self.values))
        return f"{_number(statistics.median(self.values))} {unit} ({low} .. {high})"


@dataclass
class Row:
    """One line of the table: ours, what it is compared with, and what it should be.

    `target` bounds the median of `ours` from above; None if nothing is asked of it.
    """

    case: str
    name: str
    ours: Sample
    unit: str = "s"
    reference: Sample | None = None
    floor: Sample | None = None
    target: float | None = None
    target_why: str = ""

    @property
    def passed(self) -> bool | None:
        if self.target is None:
            return None
        return self.ours.median is not None and self.ours.median <= self.target

    @property
    def ratio(self) -> float | None:
        """How many times longer the reference takes."""
        if not self.reference or not self.reference.values or not self.ours.median:
            return None
        return (self.reference.median or 0) / self.ours.median

    @property
    def floors(self) -> float | None:
        """How many times the floor this is."""
        if not self.floor or not self.floor.median or self.ours.median is None:
            return None
        return self.ours.median / self.floor.median

    def as_json(self) -> dict[str, object]:
        return {
            "case": self.case,
            "name": self.name,
            "unit": self.unit,
            "ours": self.ours.as_json(),
            "reference": self.reference.as_json() if self.reference else None,
            "floor": self.floor.as_json() if self.floor else None,
            "ratio": self.ratio,
            "floors": self.floors,
            "target": self.target,
            "target_why": self.target_why,
            "passed": self.passed,
        }

    def cells(self) -> list[str]:
        target = "" if self.target is None else f"<= {_number(self.target)} {self.unit}"
        if self.target_why:
            target += f" ({self.target_why})"
        return [
            self.name,
            self.ours.text(self.unit),
            f"{self.floor.text(self.unit)}: {self.floors:.1f} x"
            if self.floor and self.floors
            else "",
            self.reference.text(self.unit) if self.reference else "",
            "" if self.ratio is None else f"{self.ratio:.1f} x",
            target,
            {None: "", True: "pass", False: "MISS"}[self.passed],
        ]


HEADER = ["measured", "rallypoint", "floor", "reference", "ratio", "target", ""]


def table(rows: Sequence[Row]) -> str:
    """Returns the rows as a Markdown table whose columns line up."""
    lines = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |"
        for line in lines
    )


def notes(rows: Sequence[Row]) -> str:
    """Returns what the table has no room for, a line each."""
    return "\n".join(
        f"{row.name}: {sample.note}"
        for row in rows
        for sample in (row.ours, row.floor, row.reference)
        if sample and sample.values and sample.note
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
