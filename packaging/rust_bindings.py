"""Writes the Rust declarations of rallypoint.h: python packaging/rust_bindings.py.

The result is checked in, so that building the crate needs no libclang;
python/tests/test_rust_bindings.py holds it against the header, and rustc's own test of
the sizes against the C compiler's.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python" / "tests"))

import header  # noqa: E402

TARGET = ROOT / "examples" / "rust" / "rallypoint-sys" / "src" / "bindings.rs"

SCALARS = {
    "int": "c_int",
    "char": "c_char",
    "void": "c_void",
    "size_t": "usize",
    "int32_t": "i32",
    "int64_t": "i64",
    "uint32_t": "u32",
    "uint64_t": "u64",
}

# Names of C that are words of Rust.
KEYWORDS = {"type", "match", "ref", "move", "use", "where", "in"}


def rust_type(c_type: str, constants: tuple[bool, ...]) -> str:
    """The type; `constants` says of each `*`, the last first, whether it is to const."""
    if c_type.endswith("*"):
        kind = "*const" if constants[0] else "*mut"
        return f"{kind} {rust_type(c_type[:-1], constants[1:])}"
    return SCALARS.get(c_type, c_type)


def declared(variable: header.Variable, raw: str) -> str:
    """The type of a variable; `raw` is its declaration in C, with const."""
    stars = variable.type.count("*")
    before = raw.rsplit(variable.name, 1)[0]
    parts = before.split("*")  # "const char ", "const ", "" of const char *const *
    constants = tuple(bool(re.search(r"\bconst\b", parts[i])) for i in reversed(range(stars)))
    kind = rust_type(variable.type, constants)
    if kind in header.callbacks():
        kind = f"Option<{kind}>" if not kind.startswith("Option") else kind
    return f"[{kind}; {variable.array}]" if variable.array else kind


def name(text: str) -> str:
    return f"r#{text}" if text in KEYWORDS else text


def raw_lists() -> dict[str, list[str]]:
    """The fields of structs and the arguments of functions as they are written in C."""
    source = header._source()
    found = {}
    for body, struct in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", source, flags=re.S):
        found[struct] = [f.strip() for f in body.split(";") if f.strip()]
    pattern = r"typedef\s+\w+\s*\(\*(\w+)\)\(([^;]*?)\);"
    for callback, arguments in re.findall(pattern, source):
        found[callback] = [a.strip() for a in arguments.split(",")]
    for function, arguments in re.findall(r"RP_API\s+[^;(]*?(\w+)\(([^;]*)\);", source):
        found[function] = [a.strip() for a in arguments.split(",")]
    return found


def generate() -> str:
    raw = raw_lists()

    def arguments(function: header.Function) -> str:
        pairs = zip(function.arguments, raw[function.name])
        return ", ".join(f"{name(a.name)}: {declared(a, text)}" for a, text in pairs)

    def result(c_type: str) -> str:
        if c_type == "void":
            return ""
        return f" -> {'*const c_char' if c_type == 'char*' else rust_type(c_type, (False,))}"

    lines = [
        "// Written by packaging/rust_bindings.py from include/rallypoint.h: what the functions",
        "// mean is said there.",
        "",
        "use core::ffi::{c_char, c_int, c_void};",
        "",
        f"pub const RP_ABI_MAJOR: u32 = {header.constant('RP_ABI_MAJOR')};",
        f"pub const RP_ABI_MINOR: u32 = {header.constant('RP_ABI_MINOR')};",
        "pub const RP_TEXT: usize = usize::MAX;",
        "",
    ]
    for enum, items in header.enums().items():
        lines.append(f"// enum {enum}")
        kind = "u32" if enum.endswith("_flag") else "i32"
        lines += [f"pub const {key}: {kind} = {value};" for key, value in items.items()]
        lines.append("")
    for callback in header.callbacks().values():
        lines.append(f'pub type {callback.name} = unsafe extern "C" fn({arguments(callback)});')
        lines.append("")
    for struct, fields in header.structs().items():
        handle = [f.name for f in fields] == ["id"]
        lines.append("#[repr(C)]")
        lines.append(f"#[derive(Clone, Copy{', Debug, Default, PartialEq, Eq' if handle else ''})]")
        lines.append(f"pub struct {struct} {{")
        for field, text in zip(fields, raw[struct]):
            lines.append(f"    pub {name(field.name)}: {declared(field, text)},")
        lines += ["}", ""]
    lines.append('extern "C" {')
    for function in header.functions().values():
        lines.append(f"    pub fn {function.name}({arguments(function)}){result(function.result)};")
    lines += ["}", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    TARGET.write_text(generate())
    print(f"wrote {TARGET.relative_to(ROOT)}")
