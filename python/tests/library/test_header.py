"""The reader of rallypoint.h: what it says is what a C compiler says, and it guesses nothing."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterator

import header
import pytest
from conftest import REPOSITORY

from rallypoint._native import abi


def c_type(variable: header.Variable) -> str:
    base, stars = variable.type.rstrip("*"), variable.type.count("*")
    words = ["const " * variable.const[0] + base]
    words += ["*" + " const" * const for const in variable.const[1:]]
    assert len(words) == stars + 1
    return " ".join(words)


def c_arguments(function: header.Function) -> str:
    return ", ".join(f"{c_type(a)} {a.name}" for a in function.arguments) or "void"


def claims() -> Iterator[str]:
    """What was read, and what ctypes makes of it, as C that compiles only if it is so."""
    for f in header.functions().values():
        yield f"{c_type(f.returns)} {f.name}({c_arguments(f)});"
    for f in header.callbacks().values():
        yield f"typedef {c_type(f.returns)} (*{f.name})({c_arguments(f)});"
    for name, fields in header.structs().items():
        made = abi.STRUCTS[name]
        yield f'_Static_assert(sizeof({name}) == {ctypes.sizeof(made)}, "{name}");'
        for field in fields:
            place = getattr(made, field.name)
            of = f"(({name} *)0)->{field.name}"
            kind = c_type(field) + (f"[{field.array}]" if field.array else "")
            for claim in (
                f"offsetof({name}, {field.name}) == {place.offset}",
                f"sizeof({of}) == {place.size}",
                f"__builtin_types_compatible_p(__typeof__({of}), {kind})",
            ):
                yield f'_Static_assert({claim}, "{name}.{field.name}");'
    for items in (header.constants(), *header.enums().values()):
        for key, value in items.items():
            yield f'_Static_assert({key} == {value}u, "{key}");'


def compiled(lines: list[str]) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if not compiler:
        pytest.skip("there is no C compiler")
    source = "\n".join(["#include <rallypoint.h>", *lines, ""])
    command = [compiler, "-std=c11", "-Wall", "-Werror", "-fsyntax-only", "-x", "c", "-"]
    command.insert(1, f"-I{REPOSITORY / 'include'}")
    return subprocess.run(command, input=source, capture_output=True, text=True)


def test_a_compiler_agrees() -> None:
    lines = list(claims())
    assert len(lines) > 600
    done = compiled(lines)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        "int64_t rp_handles_open(int64_t *count, rp_error *err);",
        "int32_t rp_handles_open(const int64_t *count, rp_error *err);",
        "typedef void (*rp_op_callback)(const void *user);",
        '_Static_assert(RP_TEXT == 4294967295u, "RP_TEXT");',
    ],
)
def test_a_compiler_would_object(wrong: str) -> None:
    assert compiled([wrong]).returncode != 0


HEAD = """\
/* Rules. */
#ifndef RALLYPOINT_H
#define RALLYPOINT_H
#include <stddef.h>
#include <stdint.h>
/* ---- first */
"""
TAIL = "\n#endif /* RALLYPOINT_H */\n"


def parse(text: str, tail: str = TAIL) -> header.Header:
    return header.parse(HEAD + text + tail, "h")


def test_blocks() -> None:
    read = parse(
        "/* What this\n * part is about. */\n\n"
        "/* Two, and a blank line. */\n"
        "typedef struct rp_a {\n    int32_t x; /* first */\n\n    /* second */\n    char t[8];\n"
        "} rp_a;\n"
        "\nRP_API const char *rp_f(const rp_a *const *a, void *user);\n"
        "/* --- second --- part */\n"
    )
    assert read.rules == "/* Rules. */"
    first, second = read.sections
    assert (first.title, second.title, second.blocks) == ("first", "second --- part", [])
    about, both = first.blocks
    assert about.declarations == [] and about.code == ""
    assert both.code.startswith("typedef struct rp_a {") and both.code.endswith("void *user);")
    a, f = both.declarations
    assert a == header.Struct(
        "rp_a", (header.Variable("int32_t", "x"), header.Variable("char", "t", 8))
    )
    assert isinstance(f, header.Function) and f.result == "char*"
    assert f.arguments == (
        header.Variable("rp_a**", "a", 0, (True, True, False)),
        header.Variable("void*", "user", 0, (False, False)),
    )


# What the reader is given after HEAD, whose last line is 6, and what it says of it.
UNKNOWN = {
    "/* A. */\nint32_t rp_f(void);": "8: 'int32_t' begins no declaration",
    "/* A. */\n\nRP_API void rp_f(void);": "9: 'RP_API' where a comment is expected",
    "/* A. */\nRP_API void rp_f();": "8: '\\)' where a word is expected",
    "/* A. */\nRP_API void rp_f(\n    unsigned int x);": "9: unsigned is no type",
    "/* A. */\nRP_API void rp_f(struct rp_a *a);": "8: struct is no type",
    "/* A. */\nRP_API void rp_f(rp_a *a);": "8: rp_a is no type that is declared above",
    "/* A. */\nRP_API void rp_f(int x, ...);": "8: '.' is none of the C",
    "/* A. */\nRP_API void rp_f(int x[2]);": "8: the argument x is an array",
    "/* A. */\nRP_API void rp_f(void x);": "8: x is void",
    "/* A. */\nRP_API void rp_f(int);": "8: '\\)' where a word is expected",
    "/* A. */\nRP_API void rp_f(void)\n    __attribute__((pure));": "9: '__attribute__' where ';'",
    "/* A. */\nRP_API void rp_f(void);\nRP_API int rp_f(void);": "9: rp_f is declared twice",
    "/* A. */\ntypedef int32_t rp_a;": "8: 'rp_a' where '\\(' is expected",
    "/* A. */\ntypedef struct rp_a rp_a;": "8: 'rp_a' where '{' is expected",
    "/* A. */\ntypedef struct rp_a {\n} rp_a;": "8: rp_a has no fields",
    "/* A. */\ntypedef struct rp_a {\n    int x;\n} rp_b;": "10: 'rp_b' where 'rp_a'",
    "/* A. */\ntypedef struct rp_a {\n    int x : 3;\n} rp_a;": "9: ':' is none of the C",
    "/* A. */\ntypedef struct rp_a {\n    int x, y;\n} rp_a;": "9: ',' where ';' is expected",
    "/* A. */\ntypedef struct rp_a {\n    int x;\n    int x;\n} rp_a;": "10: rp_a has two fields x",
    "/* A. */\ntypedef struct rp_a {\n    char x[N];\n} rp_a;": "9: 'N' where a number",
    "/* A. */\ntypedef union rp_a {\n    int x;\n} rp_a;": "8: union is no type",
    "/* A. */\nenum rp_e { A, B };": "8: ',' where '=' is expected",
    "/* A. */\nenum rp_e {\n    A = 1,\n    B = 1\n};": "10: B has a number that rp_e has already",
    "/* A. */\nenum rp_e { A = 1 };\nenum rp_f { A = 2 };": "9: A is declared twice",
    "/* A. */\nenum rp_e { A = -1 };": "8: '-' is none of the C",
    "/* A. */\n#define RP_A RP_B": "8: the value of RP_A is none",
    "/* A. */\n#define RP_A(x) 1": "8: '#define RP_A\\(x\\) 1' is no directive",
    "/* A. */\n#ifdef RP_X\nRP_API void rp_f(void);\n#endif": "8: '#ifdef RP_X' is no directive",
    "#pragma once": "7: '#pragma once' where a comment is expected",
    "/* A. */\nRP_API void rp_f(void); // old": "8: '/' is none of the C",
}


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_it_does_not_know(text: str) -> None:
    with pytest.raises(header.HeaderError, match=f"^h:{UNKNOWN[text]}"):
        parse(text)


def test_ends() -> None:
    with pytest.raises(header.HeaderError, match=r"^h:8: '' where ';' is expected"):
        parse("/* A. */\nRP_API void rp_f(void)", "")
    with pytest.raises(header.HeaderError, match=r"^h:9: something after the end"):
        parse("", TAIL + "RP_API void rp_f(void);\n")
    with pytest.raises(header.HeaderError, match=r"^h:1: .* where a comment is expected"):
        header.parse("#pragma once\n", "h")


def test_every_line_of_the_header_was_read() -> None:
    """No declaration is passed over: there are as many as there are lines that begin one."""
    text = header.HEADER.read_text()
    for pattern, found in {
        r"^RP_API ": header.functions(),
        r"^typedef struct ": header.structs(),
        r"^typedef [^;{]*\(\*": header.callbacks(),
        r"^enum ": header.enums(),
        r"^#define RP_(?!API)": header.constants(),
    }.items():
        assert len(re.findall(pattern, text, flags=re.M)) == len(found), pattern
