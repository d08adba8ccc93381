"""A reader of include/rallypoint.h, for comparing it with what repeats it.

It knows as much C as the header uses: enums, structs of plain fields, and prototypes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HEADER = Path(__file__).resolve().parents[2] / "include" / "rallypoint.h"


@dataclass(frozen=True)
class Variable:
    type: str  # without const and spaces: "int32_t", "rp_error*"
    name: str
    array: int = 0  # length of an array; 0: none


@dataclass(frozen=True)
class Function:
    result: str
    name: str
    arguments: tuple[Variable, ...]


def _source() -> str:
    text = HEADER.read_text()
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"^\s*#.*?(?<!\\)$", "", text, flags=re.M)


def _variable(text: str) -> Variable:
    match = re.fullmatch(r"(.*?)(\w+)(?:\[(\d+)\])?", text.strip(), flags=re.S)
    assert match, text
    kind = re.sub(r"\b(const|struct|enum)\b|\s", "", match[1])
    return Variable(kind, match[2], int(match[3] or 0))


def functions() -> dict[str, Function]:
    found = {}
    for result, name, arguments in re.findall(r"RP_API\s+([^;(]*?)(\w+)\(([^;]*)\);", _source()):
        parts = [] if arguments.strip() == "void" else arguments.split(",")
        found[name] = Function(
            re.sub(r"\bconst\b|\s", "", result), name, tuple(_variable(p) for p in parts)
        )
    return found


def callbacks() -> dict[str, Function]:
    """The types of functions that the library calls: typedef RESULT (*NAME)(ARGUMENTS);"""
    found = {}
    pattern = r"typedef\s+(\w+)\s*\(\*(\w+)\)\(([^;]*?)\);"
    for result, name, arguments in re.findall(pattern, _source()):
        parts = arguments.split(",")
        found[name] = Function(result, name, tuple(_variable(p) for p in parts))
    return found


def structs() -> dict[str, tuple[Variable, ...]]:
    found = {}
    for fields, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", _source(), flags=re.S):
        found[name] = tuple(_variable(f) for f in fields.split(";") if f.strip())
    return found


def enums() -> dict[str, dict[str, int]]:
    found = {}
    for name, body in re.findall(r"enum (\w+) \{(.*?)\};", _source(), flags=re.S):
        items = re.findall(r"(\w+) = (\d+)", body)
        assert len(items) == len([part for part in body.split(",") if part.strip()]), name
        found[name] = {key: int(value) for key, value in items}
    return found


def constant(name: str) -> str:
    match = re.search(rf"#define {name} (.*)", HEADER.read_text())
    assert match, name
    return match[1]
