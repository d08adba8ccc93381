"""Writes rallypoint/_native/abi.py, what rallypoint.h declares for ctypes, from the header.

Each build of the package has it written (python/hatch_build.py), as `make check-python` has for
mypy by python packaging/python_bindings.py. python/tests/library/test_abi.py holds it against
the header, and the header against the C compiler.
"""

from __future__ import annotations

import re
from pathlib import Path

import header

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "python" / "rallypoint" / "_native" / "abi.py"


def python_name(name: str) -> str:
    """rp_store_config: StoreConfig. A handle, rp_store, is a StoreHandle."""
    words = name.removeprefix("rp_").split("_")
    fields = header.structs().get(name, ())
    handle = [f.name for f in fields] == ["id"]
    return "".join(map(str.capitalize, words)) + ("Handle" if handle else "")


def constants(found: dict[str, int]) -> list[str]:
    return [f"{name.removeprefix('RP_')} = {value}" for name, value in found.items()]


def ctype(variable: header.Variable, handed_in: bool) -> str:
    """The type of ctypes.

    Bytes that are handed in (const void *) may be given as bytes. A string from
    the library may hold a NUL, where ctypes would stop, so it is an address.
    """
    base = variable.type.rstrip("*")
    stars = len(variable.type) - len(base)
    if base == "void" and stars == 0:
        return "None"
    if base == "void" and stars == 1:
        found = "c_char_p" if handed_in and variable.const[0] else "c_void_p"
    elif base == "char" and stars:
        found = pointers("c_char_p", stars - 1)
    elif base in header.SCALARS:
        found = pointers(f"c_{base.removesuffix('_t')}" if base != "size_t" else "c_size_t", stars)
    else:
        found = pointers(python_name(base), stars)
    return f"{found} * {variable.array}" if variable.array else found


def pointers(name: str, stars: int) -> str:
    return "POINTER(" * stars + name + ")" * stars


def items(found: list[str]) -> str:
    """The inside of a tuple."""
    return ", ".join(found) + "," * (len(found) == 1)


def struct(found: header.Struct) -> str:
    base = "Struct" if found.sized else "Structure"
    fields = [f'        ("{f.name}", {ctype(f, handed_in=True)}),' for f in found.fields]
    head = f"class {python_name(found.name)}({base}):"
    return "\n".join([head, "    _fields_ = (", *fields, "    )"])


def callback(found: header.Function) -> str:
    arguments = [ctype(a, handed_in=False) for a in (found.returns, *found.arguments)]
    return f"{python_name(found.name)} = CFUNCTYPE({', '.join(arguments)})"


def function(found: header.Function) -> str:
    result = ctype(found.returns, handed_in=False)
    arguments = [ctype(a, handed_in=True) for a in found.arguments]
    return f'    "{found.name}": ({result}, ({items(arguments)})),'


def declarations() -> list[str]:
    """The structs and the types of callbacks, in the order of the header."""
    found = []
    for declaration in header.read().declarations():
        if isinstance(declaration, header.Struct):
            found.append(struct(declaration))
        elif isinstance(declaration, header.Function) and declaration.callback:
            found.append(callback(declaration))
    return found


def generate() -> str:
    numbers = constants(header.constants())
    for enum, items in header.enums().items():
        numbers += ["", f"# enum {enum}", *constants(items)]
    tables = [
        "# By their names in the header.",
        "STRUCTS: dict[str, type[Structure]] = {",
        *(f'    "{name}": {python_name(name)},' for name in header.structs()),
        "}",
        "",
        "CALLBACKS: dict[str, Any] = {",
        *(f'    "{name}": {python_name(name)},' for name in header.callbacks()),
        "}",
        "",
        "# Every function: its result and its arguments.",
        "TABLE: dict[str, tuple[Any, tuple[Any, ...]]] = {",
        *map(function, header.functions().values()),
        "}",
    ]
    body = "\n\n\n".join(["\n".join(numbers), *declarations(), "\n".join(tables)])
    scalars = sorted(set(re.findall(r"\bc_\w+", body)))
    head = [
        '"""What include/rallypoint.h declares, for ctypes; its comments say what it means.',
        "",
        "Written by packaging/python_bindings.py.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        f"from ctypes import {', '.join(['CFUNCTYPE', 'POINTER', 'Structure', *scalars])}",
        "from typing import Any",
        "",
        "from .structs import Struct",
        "",
    ]
    return "\n".join([*head, body]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(generate())
    print(f"wrote {TARGET.relative_to(ROOT)}")
