"""The one reader of include/rallypoint.h.

What repeats the header is written from what this module reads: rallypoint/_native/abi.py, docs/c.md
and the declarations for Rust; tests hold the library and the record of the interface against
it. It knows as much C as the header uses and takes nothing else: HeaderError names the line
of what it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NoReturn, TypeVar, Union

HEADER = Path(__file__).resolve().parents[1] / "include" / "rallypoint.h"

SCALARS = ("int", "char", "int32_t", "int64_t", "uint32_t", "uint64_t", "size_t")

SIZE_MAX = 2**64 - 1  # of size_t on every machine that the library is built for


class HeaderError(Exception):
    """The header holds what this reader does not know."""


@dataclass(frozen=True)
class Variable:
    """A field, an argument, or (without a name) a result."""

    type: str  # without const and spaces: "int32_t", "rp_error*"
    name: str
    array: int = 0  # length of an array; 0: none
    const: tuple[bool, ...] = (False,)  # of the type without its stars, and of each star


@dataclass(frozen=True)
class Function:
    returns: Variable
    name: str
    arguments: tuple[Variable, ...]
    callback: bool = False  # a type of functions that the library calls

    @property
    def result(self) -> str:
        return self.returns.type


@dataclass(frozen=True)
class Struct:
    name: str
    fields: tuple[Variable, ...]

    @property
    def sized(self) -> bool:
        """Whether it begins with its own size, and may grow."""
        return self.fields[0].name == "struct_size"


@dataclass(frozen=True)
class Enum:
    name: str
    items: dict[str, int]


@dataclass(frozen=True)
class Constant:
    """A #define of a number."""

    name: str
    value: int


Declaration = Union[Function, Struct, Enum, Constant]


@dataclass
class Block:
    """A comment, and the declarations that it is about: none, if a blank line follows it."""

    comment: str  # with its stars
    code: str = ""  # the declarations as they are written
    declarations: list[Declaration] = field(default_factory=list)


@dataclass
class Section:
    title: str
    blocks: list[Block] = field(default_factory=list)


@dataclass
class Header:
    rules: str  # the comment at the head of the file
    sections: list[Section]

    def declarations(self) -> Iterator[Declaration]:
        """All of them, in the order of the header."""
        for section in self.sections:
            for block in section.blocks:
                yield from block.declarations


_TOKEN = re.compile(
    r"(?P<blank>\s+)|(?P<comment>/\*.*?\*/)|(?P<directive>\#[^\n]*)|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<number>\d+)|(?P<sign>[{}()\[\]*,;=])",
    flags=re.S,
)
_SECTION = re.compile(r"/\* -{3,} (.+?) \*/")
_DEFINE = re.compile(r"#define (\w+) (.+)")
_SUM = re.compile(r"[0-9<|() ]+")

# What the preprocessor makes of the file is for compilers; it declares nothing.
_GUARD = ("#ifndef RALLYPOINT_H", "#define RALLYPOINT_H", "#endif /* RALLYPOINT_H */")
_INCLUDES = ("#include <stddef.h>", "#include <stdint.h>")
_CONDITIONS = {
    """\
#if defined(__GNUC__)
#define RP_API __attribute__((visibility("default")))
#else
#define RP_API
#endif
""",
    """\
#ifdef __cplusplus
extern "C" {
#endif
""",
    """\
#ifdef __cplusplus
}
#endif
""",
}


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class _Reader:
    """Goes over the tokens of a header once."""

    def __init__(self, source: str, name: str) -> None:
        self.source, self.name = source, name
        self.tokens = self._split()
        self.position = 0
        self.types = {"void", *SCALARS}  # that are known so far
        self.constants: dict[str, int] = {}
        self.names: set[str] = set()

    def fail(self, at: _Token, problem: str) -> NoReturn:
        line = self.source.count("\n", 0, at.start) + 1
        raise HeaderError(f"{self.name}:{line}: {problem}")

    def _split(self) -> list[_Token]:
        tokens, position = [], 0
        while position < len(self.source):
            for condition in _CONDITIONS:
                if self.source.startswith(condition, position):
                    position += len(condition)
            match = _TOKEN.match(self.source, position)
            if not match:
                stray = _Token("", self.source[position : position + 1], position)
                if stray.text:
                    self.fail(stray, f"{stray.text!r} is none of the C that this reader knows")
                break
            kind = match.lastgroup or ""
            if kind != "blank":
                tokens.append(_Token(kind, match[0].rstrip(), position))
            position = match.end()
        return [*tokens, _Token("end", "", len(self.source))]

    # Tokens. Comments within a declaration say nothing to a reader of types.

    def peek(self) -> _Token:
        return self.tokens[self.position]

    def next(self) -> _Token:
        token = self.tokens[self.position]
        self.position = min(self.position + 1, len(self.tokens) - 1)
        return token

    def inner(self) -> _Token:
        while self.peek().kind == "comment":
            self.next()
        return self.next()

    def expect(self, *texts: str) -> _Token:
        token = self.inner()
        if token.text not in texts:
            self.fail(token, f"{token.text!r} where {' or '.join(map(repr, texts))} is expected")
        return token

    def take(self, text: str) -> bool:
        """Goes over the next token if it is this one."""
        while self.peek().kind == "comment":
            self.next()
        if self.peek().text != text:
            return False
        self.next()
        return True

    def of_kind(self, kind: str) -> _Token:
        token = self.inner()
        if token.kind != kind:
            self.fail(token, f"{token.text!r} where a {kind} is expected")
        return token

    def new(self, token: _Token) -> str:
        """A name that nothing else of the header has."""
        if token.text in self.names:
            self.fail(token, f"{token.text} is declared twice")
        self.names.add(token.text)
        return token.text

    # The grammar.

    def header(self) -> Header:
        rules = self.of_comment(self.next())
        for text in (*_GUARD[:2], *_INCLUDES):
            self.expect(text)
        sections: list[Section] = []
        while self.peek().text != _GUARD[2]:
            token = self.next()
            title = _SECTION.fullmatch(self.of_comment(token))
            if title:
                sections.append(Section(title[1].strip()))
            elif not sections:
                self.fail(token, "a comment before the first section")
            else:
                sections[-1].blocks.append(self.block(token))
        self.next()
        while self.peek().kind == "comment":
            self.next()
        if self.peek().kind != "end":
            self.fail(self.peek(), "something after the end of the include guard")
        return Header(rules, sections)

    def of_comment(self, token: _Token) -> str:
        if token.kind != "comment":
            self.fail(token, f"{token.text!r} where a comment is expected, with what follows it")
        return token.text

    def block(self, comment: _Token) -> Block:
        block = Block(comment.text)
        first = self.peek()
        if self.source[comment.end : first.start].count("\n") != 1 or first.kind == "comment":
            return block
        while self.peek().kind not in ("comment", "end") and self.peek().text != _GUARD[2]:
            block.declarations.append(self.declaration())
        block.code = self.source[first.start : self.tokens[self.position - 1].end]
        return block

    def declaration(self) -> Declaration:
        token = self.next()
        if token.kind == "directive":
            return self.constant(token)
        if token.text == "enum":
            return self.enum()
        if token.text == "RP_API":
            return self.function()
        if token.text == "typedef":
            return self.struct() if self.take("struct") else self.callback()
        self.fail(token, f"{token.text!r} begins no declaration that this reader knows")

    def constant(self, token: _Token) -> Constant:
        match = _DEFINE.fullmatch(token.text)
        if not match:
            self.fail(token, f"{token.text!r} is no directive that this reader knows")
        text = re.sub(r"\bRP_\w+", lambda m: str(self.constants.get(m[0], m[0])), match[2])
        if text == "((size_t)-1)":
            value = SIZE_MAX
        else:
            text = text.replace("(uint32_t)", "")
            if not _SUM.fullmatch(text):
                self.fail(token, f"the value of {match[1]} is none that this reader knows")
            value = eval(text)  # of digits, shifts and ors
        name = self.new(_Token("word", match[1], token.start))
        self.constants[name] = value
        return Constant(name, value)

    def enum(self) -> Enum:
        name = self.new(self.of_kind("word"))
        items: dict[str, int] = {}
        self.expect("{")
        while True:
            item = self.new(self.of_kind("word"))
            self.expect("=")
            number = self.of_kind("number")
            if int(number.text) in items.values():
                self.fail(number, f"{item} has a number that {name} has already")
            items[item] = int(number.text)
            if self.expect(",", "}").text == "}":
                break
        self.expect(";")
        return Enum(name, items)

    def struct(self) -> Struct:
        tag = self.of_kind("word")
        fields: list[Variable] = []
        self.expect("{")
        while not self.take("}"):
            at = self.peek()
            variable = self.variable()
            if variable.name in (f.name for f in fields):
                self.fail(at, f"{tag.text} has two fields {variable.name}")
            fields.append(variable)
            self.expect(";")
        if not fields:
            self.fail(tag, f"{tag.text} has no fields")
        self.expect(tag.text)
        self.expect(";")
        self.types.add(self.new(tag))
        return Struct(tag.text, tuple(fields))

    def callback(self) -> Function:
        result = self.type_of()
        self.expect("(")
        self.expect("*")
        name = self.new(self.of_kind("word"))
        self.expect(")")
        found = Function(result, name, self.arguments(), callback=True)
        self.types.add(name)
        return found

    def function(self) -> Function:
        result = self.type_of()
        return Function(result, self.new(self.of_kind("word")), self.arguments())

    def arguments(self) -> tuple[Variable, ...]:
        found: list[Variable] = []
        self.expect("(")
        if self.peek().text == "void" and self.tokens[self.position + 1].text == ")":
            self.next()
            self.next()
        else:
            while True:
                at = self.peek()
                found.append(self.variable())
                if found[-1].array:
                    self.fail(at, f"the argument {found[-1].name} is an array")
                if self.expect(",", ")").text == ")":
                    break
        self.expect(";")
        return tuple(found)

    def variable(self) -> Variable:
        kind = self.type_of()
        name = self.of_kind("word")
        length = 0
        if kind.type == "void":
            self.fail(name, f"{name.text} is void")
        if self.take("["):
            length = int(self.of_kind("number").text)
            self.expect("]")
        return Variable(kind.type, name.text, length, kind.const)

    def type_of(self) -> Variable:
        """A type: const, a name, and stars, each of which may be const."""
        const = [self.take("const")]
        name = self.of_kind("word")
        if name.text not in self.types:
            self.fail(name, f"{name.text} is no type that is declared above")
        while self.take("*"):
            const.append(self.take("const"))
        return Variable(name.text + "*" * (len(const) - 1), "", 0, tuple(const))


def parse(source: str, name: str = HEADER.name) -> Header:
    """Reads a header; `name` is what errors call it."""
    return _Reader(source, name).header()


@cache
def read() -> Header:
    """Reads include/rallypoint.h."""
    return parse(HEADER.read_text())


_D = TypeVar("_D", Function, Struct, Enum, Constant)


def _all(kind: type[_D]) -> Iterator[_D]:
    return (d for d in read().declarations() if isinstance(d, kind))


def functions() -> dict[str, Function]:
    """The functions of the library."""
    return {f.name: f for f in _all(Function) if not f.callback}


def callbacks() -> dict[str, Function]:
    """The types of functions that the library calls."""
    return {f.name: f for f in _all(Function) if f.callback}


def structs() -> dict[str, tuple[Variable, ...]]:
    return {s.name: s.fields for s in _all(Struct)}


def enums() -> dict[str, dict[str, int]]:
    return {e.name: dict(e.items) for e in _all(Enum)}


def constants() -> dict[str, int]:
    return {c.name: c.value for c in _all(Constant)}
