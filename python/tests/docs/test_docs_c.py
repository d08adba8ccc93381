"""The pages about the C interface say what the header says."""

from __future__ import annotations

import re

import c_reference
import header
from conftest import REPOSITORY

from rallypoint import Code


def test_reference_is_current() -> None:
    assert c_reference.TARGET.read_text() == c_reference.generate(), "run make docs"


def test_reference_holds_everything() -> None:
    page = (REPOSITORY / "docs" / "c.md").read_text()
    titles = set(re.findall(r"`(?:enum )?(\w+)`", "\n".join(re.findall(r"^### .*", page, re.M))))
    declared = {*header.functions(), *header.structs(), *header.enums(), *header.callbacks()}
    assert declared <= titles, declared - titles
    for link in re.findall(r"\]\(([^)#]+)", page):
        assert (REPOSITORY / "docs" / link).exists() or link.endswith(".md"), link


def test_error_codes() -> None:
    rows = re.findall(
        r"^\| (\d+) \| `(\w+)` \| (yes|no) \| (.+?) \| (.+?) \|$",
        (REPOSITORY / "docs" / "errors.md").read_text(),
        flags=re.M,
    )
    assert [(int(number), name) for number, name, *_ in rows] == [(c.value, c.name) for c in Code]
    comments = dict(re.findall(r"RP_ERR_(\w+) = \d+,? +/\* (.*?) \*/", header.HEADER.read_text()))
    assert {name: meaning for _, name, _, meaning, _ in rows} == comments
    again = {name for _, name, answer, *_ in rows if answer == "yes"}
    source = (REPOSITORY / "core" / "rendezvous" / "errors.go").read_text()
    rule = re.search(r"func \(c Code\) Retryable\(\) bool \{(.*?)\}", source, flags=re.S)
    assert rule and {n.upper() for n in re.findall(r"Code([A-Z]\w+)", rule[1])} == again
