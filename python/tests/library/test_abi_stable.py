"""What was once recorded of the interface stays: numbers, fields and arguments.

capi/abi/interface.txt is written by this file as a program, which `make
abi-baseline` runs. What is there may be added to, in the ways that the header
guarantees, and never changed. capi/abi/check holds the built library against the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

import header

RECORD = Path(__file__).resolve().parents[3] / "capi" / "abi" / "interface.txt"


def _words(variables: tuple[header.Variable, ...]) -> str:
    return " ".join(f"{v.name}:{v.type}" + (f"[{v.array}]" if v.array else "") for v in variables)


def present() -> list[str]:
    """The interface as lines: kind, name, and what may not change."""
    lines = []
    for name, items in header.enums().items():
        lines += [f"enum {name} {key}={value}" for key, value in items.items()]
    lines += [f"struct {name} {_words(fields)}" for name, fields in header.structs().items()]
    for kind, found in (("callback", header.callbacks()), ("function", header.functions())):
        lines += [f"{kind} {f.name} {f.result} {_words(f.arguments)}" for f in found.values()]
    return lines


def broken(recorded: list[str], now: list[str]) -> list[str]:
    """The recorded lines that hold no more."""
    known = set(now)
    structs = {line.split(" ", 2)[1]: line for line in now if line.startswith("struct ")}
    missing = []
    for line in recorded:
        kind, name, rest = line.split(" ", 2)
        grown = (
            structs.get(name, "") if kind == "struct" and rest.startswith("struct_size:") else ""
        )
        if line not in known and not grown.startswith(line + " "):
            missing.append(line)
    return missing


def test_interface_is_stable() -> None:
    recorded = RECORD.read_text().splitlines()
    assert len(recorded) > 150
    assert not broken(recorded, present())


def test_what_may_change() -> None:
    old = [
        "enum e A=1",
        "struct config struct_size:size_t a:int32_t",
        "struct handle id:uint64_t",
        "function f int32_t a:int32_t",
    ]
    grown = [
        "enum e A=1",
        "enum e B=2",
        "struct config struct_size:size_t a:int32_t b:int32_t",
        "struct handle id:uint64_t",
        "function f int32_t a:int32_t",
        "function g int32_t ",
    ]
    assert broken(old, grown) == []
    assert broken(grown, old) == [grown[1], grown[2], grown[5]]
    assert broken(old, [*old[:2], "struct handle id:uint64_t b:int32_t", old[3]]) == [old[2]]
    assert broken(old, [old[0], "struct config struct_size:size_t b:int32_t a:int32_t", *old[2:]])
    assert broken(old, [*old[:3], "function f int32_t a:int64_t"]) == [old[3]]


if __name__ == "__main__":
    RECORD.write_text("\n".join(present()) + "\n")
    sys.stdout.write(f"recorded {len(present())} lines in {RECORD.name}\n")
