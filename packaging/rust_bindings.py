"""Writes the Rust declarations of rallypoint.h: python packaging/rust_bindings.py,
which `make docs` runs.

The result is checked in, so that building the crate needs no libclang;
python/tests/library/test_rust_bindings.py holds it against the header, and rustc's own test of
the sizes against the C compiler's.
"""

from __future__ import annotations

from pathlib import Path

import header

ROOT = Path(__file__).resolve().parents[1]
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
    """The type; `constants` says of what each `*` points to, the first first, if it is const."""
    if c_type.endswith("*"):
        kind = "*const" if constants[-1] else "*mut"
        return f"{kind} {rust_type(c_type[:-1], constants[:-1])}"
    return SCALARS.get(c_type, c_type)


def declared(variable: header.Variable) -> str:
    kind = rust_type(variable.type, variable.const[:-1])
    if variable.type in header.callbacks():
        kind = f"Option<{kind}>"
    return f"[{kind}; {variable.array}]" if variable.array else kind


def name(text: str) -> str:
    return f"r#{text}" if text in KEYWORDS else text


def constant(found: str, value: int) -> str:
    if value == header.SIZE_MAX:
        return f"pub const {found}: usize = usize::MAX;"
    return f"pub const {found}: u32 = {value};"


def generate() -> str:
    def arguments(function: header.Function) -> str:
        return ", ".join(f"{name(a.name)}: {declared(a)}" for a in function.arguments)

    def result(function: header.Function) -> str:
        return "" if function.result == "void" else f" -> {declared(function.returns)}"

    lines = [
        "// Written by packaging/rust_bindings.py from include/rallypoint.h: what the functions",
        "// mean is said there.",
        "",
        "use core::ffi::{c_char, c_int, c_void};",
        "",
        *(constant(key, value) for key, value in header.constants().items()),
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
        for field in fields:
            lines.append(f"    pub {name(field.name)}: {declared(field)},")
        lines += ["}", ""]
    lines.append('extern "C" {')
    for function in header.functions().values():
        lines.append(f"    pub fn {function.name}({arguments(function)}){result(function)};")
    lines += ["}", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    TARGET.write_text(generate())
    print(f"wrote {TARGET.relative_to(ROOT)}")
