"""Writes docs/c.md, the reference of the C interface, from rallypoint.h.

python packaging/c_reference.py, which `make docs` runs. What comes before the functions
is packaging/c_reference.head.md; everything else is the header's own words.
python/tests/test_docs_c.py holds the page against the header.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER = ROOT / "include" / "rallypoint.h"
HEAD = ROOT / "packaging" / "c_reference.head.md"
TARGET = ROOT / "docs" / "c.md"

SECTION = re.compile(r"^/\* -{3,} (.+?) \*/$", flags=re.M)
BLOCK = re.compile(r"/\*(?P<comment>.*?)\*/\n(?P<code>(?:(?!/\*|\n\n).)*)", flags=re.S)

# What is code in a comment: quoted, a name of ours, *an_output, ${a_macro}.
CODE = re.compile(r"`[^`]*`|\*?\b(?:RP_[A-Z_]+\b|rp_\w+\b(?:\(\))?)|\*\w+|\$\{\w+\}|\$\w+")

# A declaration that the comment before the one above it holds for, too.
FOLLOWING = re.compile(r"\n*((?:RP_API|typedef)[^/]*?;\n)(?=\n|/|RP|t|$)")


def text_of(comment: str) -> str:
    """A comment as Markdown: its lines without stars; what is indented stays as it is."""
    lines = [re.sub(r"^\s?\* ?", "", line) for line in comment.strip("\n").splitlines()]
    return "\n".join(line.rstrip() for line in lines).strip()


def paragraphs(text: str) -> str:
    """Joins the lines of each paragraph; lists and tables of words keep their lines."""
    out = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.splitlines()
        if any(re.match(r"\w+: {2,}", line) or line.startswith(" ") for line in lines):
            items = re.split(r"\n(?=\w+: )", paragraph)
            out.append("\n".join("- " + re.sub(r"\s+", " ", item) for item in items))
        else:
            out.append(" ".join(lines))
    return escape("\n\n".join(out))


def escape(text: str) -> str:
    """Keeps names with underscores and stars from being taken for emphasis."""

    def quote(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith("`") else f"`{match[0]}`"

    return re.sub(
        r"`[^`]*`|\*?\bRP_[A-Z_]+\b|\*?\brp_\w+\b(?:\(\))?|\*\w+|\$\{\w+\}|\$\w+", quote, text
    )


def rules(comment: str) -> str:
    """The rules at the head of the file, as a table."""
    rows: list[list[str]] = []
    for line in text_of(comment).splitlines():
        if match := re.match(r"  (\S.*?)  +(\S.*)", line):
            rows.append([match[1], match[2]])
        elif rows and re.match(r" {8,}\S", line):
            rows[-1][1] += " " + line.strip()
    body = "\n".join(f"| {name} | {escape(meaning)} |" for name, meaning in rows)
    return f"| about | rule |\n| --- | --- |\n{body}"


def names(code: str) -> list[str]:
    found = re.findall(r"RP_API[^;(]*?(\w+)\(", code)
    found += re.findall(r"typedef struct (\w+)", code)
    found += re.findall(r"typedef \w+ \(\*(\w+)\)", code)
    found += [f"enum {name}" for name in re.findall(r"^enum (\w+)", code, flags=re.M)]
    return found + re.findall(r"#define (\w+)", code)


def whole(code: str, rest: str) -> str:
    """The declaration with what a blank line or comment inside of braces cut off."""
    depth = code.count("{") - code.count("}")
    if depth <= 0:
        return code
    end = rest.index("\n}", 0)
    return code + rest[: rest.index("\n", end + 1)]


def unindent(match: re.Match[str]) -> str:
    """A declaration without RP_API, and its other lines moved with the first."""
    return match[1].replace("\n       ", "\n")


def blocks(section: str) -> str:
    parts = []
    position = 0
    while match := BLOCK.search(section, position):
        code = whole(match["code"], section[match.end("code") :])
        position = match.end("code") + len(code) - len(match["code"])
        bare = code
        while following := FOLLOWING.match(section, position):
            if not bare.strip() or "/*" in following[0]:
                break
            bare += following[0]
            position = following.end()
        code = re.sub(r"^RP_API (.*\n(?: {8,}.*\n?)*)", unindent, bare, flags=re.M).strip()
        text = paragraphs(text_of(match["comment"]))
        title = ", ".join(f"`{name}`" for name in names(bare))
        if title:
            parts.append(f"### {title}\n\n```c\n{code}\n```\n\n{text}")
        else:
            parts.append(text)
    return "\n\n".join(parts)


def generate() -> str:
    source = HEADER.read_text()
    head = re.search(r"/\*(.*?)\*/", source, flags=re.S)
    assert head
    parts = [HEAD.read_text().strip(), "## Rules of all functions", rules(head[1])]
    pieces = SECTION.split(source)[1:]
    for title, body in zip(pieces[::2], pieces[1::2]):
        body = re.sub(r"#if(def|ndef).*?#endif.*?\n", "", body, flags=re.S)
        parts += [f"## {title.strip().capitalize()}", blocks(body)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    TARGET.write_text(generate())
    print(f"wrote {TARGET.relative_to(ROOT)}")
