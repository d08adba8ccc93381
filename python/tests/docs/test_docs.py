"""Every relative link of the documentation leads to a file, and its anchor to a heading."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import links
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

LINK = re.compile(r"\]\(([^()\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def anchor(heading: str) -> str:
    """The name that Markdown renderers give a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", text))


def anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {anchor(heading) for heading in HEADING.findall(text)}


def test_there_are_pages() -> None:
    assert ROOT / "README.md" in PAGES
    assert ROOT / "docs" / "index.md" in PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    broken = []
    for target in LINK.findall(CODE.sub("", page.read_text())):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or not file.is_relative_to(ROOT):
            broken.append(f"{target}: there is no such file")
        elif fragment and file.suffix == ".md" and fragment not in anchors(file):
            broken.append(f"{target}: there is no such heading")
    assert not broken, f"{page.relative_to(ROOT)}: " + "; ".join(broken)


# Hosts whose addresses stay: projects' own sites, and GitHub for projects without one.
HOSTS = {"docs.nvidia.com", "github.com", "go.dev", "keepachangelog.com", "semver.org"}


def test_links_to_other_hosts() -> None:
    """Their form alone; `make check-links` fetches them."""
    external = links.external()
    assert len(external) > 3
    for link in external:
        parts = urlsplit(link)
        assert parts.scheme == "https" and parts.netloc in HOSTS and not parts.query, link
    assert len({link.partition("#")[0].rstrip("/") for link in external}) == len(external)


def test_every_page_is_in_the_site() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    assert yaml.safe_load(settings)["site_name"] == "Rallypoint"
    named = set(re.findall(r": (\S+\.md)$", settings, re.MULTILINE))
    for pattern in re.findall(r"^  /(\S+\.md)$", settings, re.MULTILINE):  # not_in_nav
        beside = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob(f"docs/{pattern}")}
        assert beside and not named & beside, pattern
        named |= beside
    pages = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")}
    assert named == pages


def test_every_decision_is_in_the_index() -> None:
    """A record has a number of its own, the parts of a record, and its title in design.md."""
    design = (ROOT / "docs" / "design.md").read_text()
    records = sorted(ROOT.glob("docs/decisions/*.md"))
    assert len({record.name[:4] for record in records}) == len(records)
    for record in records:
        text = record.read_text()
        found = re.match(r"# (\d{4}): (.+)\n\nDate: \d{4}-\d\d-\d\d\n", text)
        assert found and record.name.startswith(f"{found[1]}-")
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
            "Context",
            "Decision",
            "Consequence",
        ]
        assert f"- [{found[1]}](decisions/{record.name}) {found[2]}\n" in design
    assert design.count("](decisions/0") >= len(records) > 30


def test_guarantees_take_four_lines() -> None:
    """Each of a hundred characters; what they do not say is among their rules."""
    design = (ROOT / "docs" / "design.md").read_text()
    guarantees = re.findall(r"^(\d+)\. (.+)$", design.partition("## Guarantees\n")[2], re.MULTILINE)
    assert [int(number) for number, _ in guarantees] == list(range(1, 13))
    assert not [number for number, text in guarantees if len(text) > 400]


def test_readme_is_short_and_shows_the_install_on_its_first_screen() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert any(line.startswith("pip install .") for line in lines[:20])
    assert len(lines) < 100


def test_picture_of_the_faults_has_the_recorded_figures() -> None:
    spec = importlib.util.spec_from_file_location(
        "faults", ROOT / "docs" / "pictures" / "faults.py"
    )
    assert spec and spec.loader
    faults = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(faults)
    assert faults.TARGET.read_text() == faults.generate(), "run docs/pictures/faults.py"


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_costs_of_faults_are_those_recorded(page: str) -> None:
    """The first screen's table says what the page of the measurement says."""
    warm = (ROOT / "docs" / "warm.md").read_text()
    shown = re.findall(
        r"^\| .* \| ([\d.]+ s) \| ([\d.]+ s) \| .* \| ([\d.]+ s) \|$",
        (ROOT / page).read_text(),
        re.M,
    )
    faults = ("killed worker, median", "lost node", "lost host")
    assert len(shown) == 3
    for costs, fault in zip(shown, faults):
        assert f"| cost of a {fault} | {' | '.join(costs)} | " in warm


def test_no_program_is_in_the_repository() -> None:
    """What is built is built from sources: no executable, no library, no archive."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("this is no clone")
    built = (b"\x7fELF", b"!<arch>", b"PK\x03\x04", b"\x1f\x8b", b"\xca\xfe\xba\xbe", b"\0asm")
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert [p for p in paths if p.is_file() and p.open("rb").read(7).startswith(built)] == []


@pytest.mark.parametrize("picture", sorted(ROOT.glob("docs/**/*.svg")), ids=lambda p: p.name)
def test_pictures_show_everywhere(picture: Path) -> None:
    """An SVG in a page of a forge is an image: without scripts, and from no other host."""
    for element in ElementTree.parse(picture).iter():
        assert element.tag.partition("}")[2] not in ("script", "foreignObject", "image", "use")
        assert not [name for name in element.attrib if name.endswith("href")]
        assert not re.search(r"url\((?!#)|@import", element.text or "")


def test_tests_of_deviations() -> None:
    """Each test that a row names exists."""
    named = re.findall(r"`((?:Test|test_)\w+)(?:\.py)?`", (ROOT / "docs/deviations.md").read_text())
    python = sorted((ROOT / "python/tests").rglob("*.py"))
    go = [p for d in ROOT.glob("[a-z]*") if d.is_dir() for p in d.rglob("*_test.go")]
    there = {path.stem for path in python}
    for path in (*python, *go):
        there.update(re.findall(r"^\s*(?:func|def) (\w+)\(", path.read_text(), re.MULTILINE))
    assert len(named) > 100 and not set(named) - there
