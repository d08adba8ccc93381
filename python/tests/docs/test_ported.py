"""docs/ported-tests.md names each test of torch that docs/spec lists, and tests of ours that
are there."""

from __future__ import annotations

import ast
import json
import re
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
from compatible import names_of_torch, rows

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "ported-tests.md"


def lists_of_the_spec() -> dict[str, list[str]]:
    """The tests of torch by the heading under which they are listed."""
    lists: dict[str, list[str]] = {}
    for page, start, end in (("agent", "## 15.", "\n## 16."), ("rendezvous", "## 7.", "\n## 8.")):
        text = (ROOT / "docs" / "spec" / f"{page}.md").read_text()
        section = text[text.index(start) : text.index(end)]
        for part in re.split(r"^### ", section, flags=re.MULTILINE)[1:]:
            heading, _, body = part.partition("\n")
            names = []
            for line in body.split("\n"):
                line = line.split("|")[1] if line.startswith("|") else line
                names += names_of_torch(line.replace("test_control_plane:", ""))
            lists[heading] = names
    return lists


LISTS = lists_of_the_spec()
ROWS = rows(PAGE)


def test_lists_are_read() -> None:
    assert len(LISTS) == 21 and sum(map(len, LISTS.values())) > 400
    assert "test_is_running" in LISTS["agent/server/test/api_test.py"]
    assert "..._is_none" in LISTS[next(h for h in LISTS if h.startswith("rendezvous_backend"))]


@pytest.mark.parametrize("heading", LISTS)
def test_every_test_of_torch_has_its_row(heading: str) -> None:
    named = [name for first, _ in ROWS.get(heading, []) for name in names_of_torch(first)]
    assert sorted(named) == sorted(LISTS[heading])


@cache
def recorded() -> list[str]:
    cases = ROOT / "agent" / "testdata" / "torchrun" / "cases.json"
    return [case["name"] for case in json.loads(cases.read_text())]


@cache
def go_tests(package: str) -> frozenset[str]:
    texts = (path.read_text() for path in (ROOT / package).glob("*_test.go"))
    pattern = re.compile(r"^func ((?:Test|Fuzz)\w+)\(", re.MULTILINE)
    return frozenset(name for text in texts for name in pattern.findall(text))


@cache
def python_tests(file: str) -> frozenset[str]:
    path = ROOT / "python" / "tests" / file
    found = []
    for node in ast.parse(path.read_text()).body if path.exists() else []:
        if isinstance(node, ast.FunctionDef):
            found.append(node.name)
        elif isinstance(node, ast.ClassDef):
            found += [f"{node.name}::{f.name}" for f in node.body if isinstance(f, ast.FunctionDef)]
    return frozenset(found)


def exists(name: str) -> bool:
    if name.startswith("recorded:"):
        return any(fnmatch(case, name.removeprefix("recorded:")) for case in recorded())
    if found := re.fullmatch(r"([a-z]+/test_\w+\.py)::([\w:]+)", name):
        return found[2] in python_tests(found[1])
    if found := re.fullmatch(r"(capi/tests/\w+\.c):(\w+)", name):
        text = (ROOT / found[1]).read_text()
        return re.search(rf"^static \w+ {found[2]}\(", text, re.MULTILINE) is not None
    if found := re.fullmatch(r"([\w/]+)\.((?:Test|Fuzz)\w+)", name):
        return found[2] in go_tests(found[1])
    return (ROOT / name).exists()


@pytest.mark.parametrize("heading", [heading for heading, rows in ROWS.items() if rows])
def test_our_tests_exist(heading: str) -> None:
    for first, second in ROWS[heading]:
        names = [name for name in re.findall(r"`([^`]+)`", second) if " " not in name]
        assert names or second.startswith("Not applicable: "), f"{first}: no test is named"
        missing = [name for name in names if not exists(name)]
        assert not missing, f"{first}: there are no {missing}"


def section(page: str, start: str, end: str) -> str:
    text = (ROOT / "docs" / "spec" / f"{page}.md").read_text()
    return text[text.index(start) : text.index(end) if end else None]


def test_acceptance_is_complete() -> None:
    points = re.findall(r"^(\d+)\. ", section("agent", "## 18.", ""), re.MULTILINE)
    assert [first.split()[0] for first, _ in ROWS["Acceptance"]] == points


@pytest.mark.parametrize(
    ("heading", "listed"),
    [
        ("Weak points of the agent", section("agent", "## 17.", "\n## 18.")),
        ("Weak points of the rendezvous", section("rendezvous", "## 6.", "\n## 7.")),
    ],
)
def test_weak_points_are_complete(heading: str, listed: str) -> None:
    points = {int(n) for n in re.findall(r"(?:\*\*\[|^\| )W(\d+)\b", listed, re.MULTILINE)}
    named = [int(n) for first, _ in ROWS[heading] for n in re.findall(r"\bW(\d+)\b", first)]
    assert named == sorted(points) == list(range(1, len(points) + 1))


def test_barrier_contract_is_complete() -> None:
    promises = re.findall(r"^\| ", section("rendezvous", "## 5.", "\n## 6."), re.MULTILINE)
    assert len(ROWS["The older barrier contract"]) == len(promises) - 1


def test_each_loss_has_two_proofs() -> None:
    """CONTRIBUTING.md names a test of a model and one of processes, which exist."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## What proves a loss\n")[2]
    table = re.findall(r"^\| (.*?) \| (.*) \| (.*) \|$", text.partition("\n## ")[0], re.MULTILINE)
    assert len(table) > 20
    for loss, *proofs in table[2:]:
        for names in (re.findall(r"`([^`]+)`", proof) for proof in proofs):
            assert names and [name for name in names if not exists(name)] == [], loss


def test_what_does_not_exist_is_found() -> None:
    for name in (
        "recorded:none-*",
        "launch/test_nodes.py::test_none",
        "docs/test_none.py::test_none",
        "agent.TestNone",
        "core/none.TestSignal",
        "capi/tests/agent.c:none",
        "agent/none.go",
    ):
        assert not exists(name), name
