"""Writes docs/c.md, the reference of the C interface, from rallypoint.h.

python packaging/c_reference.py, which `make docs` runs. The text before the
functions is packaging/c_reference.head.md; everything else is the header's own
words.
python/tests/docs/test_docs_c.py holds the page against the header.
"""

from __future__ import annotations

import re
from pathlib import Path

import header

ROOT = Path(__file__).resolve().parents[1]
HEAD = ROOT / "packaging" / "c_reference.head.md"
TARGET = ROOT / "docs" / "c.md"


def text_of(comment: str) -> str:
    """A comment as Markdown: its lines without stars. Indented lines stay as they are."""
    text = comment.removeprefix("/*").removesuffix("*/")
    lines = [re.sub(r"^\s?\* ?", "", line) for line in text.strip("\n").splitlines()]
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


def title(declaration: header.Declaration) -> str:
    kind = "enum " if isinstance(declaration, header.Enum) else ""
    return f"`{kind}{declaration.name}`"


def unindent(match: re.Match[str]) -> str:
    """A declaration without RP_API, and its other lines moved with the first."""
    return match[1].replace("\n       ", "\n")


def part(block: header.Block) -> str:
    text = paragraphs(text_of(block.comment))
    if not block.declarations:
        return text
    code = re.sub(r"^RP_API (.*\n?(?: {8,}.*\n?)*)", unindent, block.code, flags=re.M)
    titles = ", ".join(map(title, block.declarations))
    return f"### {titles}\n\n```c\n{code}\n```\n\n{text}"


def head() -> str:
    """The text before the reference, with the programs that it names in comments."""
    return re.sub(
        r"<!-- the program (\S+) -->",
        lambda m: f"```c\n{(ROOT / m[1]).read_text().strip()}\n```",
        HEAD.read_text().strip(),
    )


def generate() -> str:
    read = header.read()
    parts = [head(), "## Rules of all functions", rules(read.rules)]
    for section in read.sections:
        parts.append(f"## {section.title.capitalize()}")
        if section.blocks:
            parts.append("\n\n".join(map(part, section.blocks)))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    TARGET.write_text(generate())
    print(f"wrote {TARGET.relative_to(ROOT)}")
