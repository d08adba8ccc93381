"""`make site` leaves no dead link: sources that pages link to are part of the site."""

from __future__ import annotations

from pathlib import Path

import site_links


def made(root: Path, links: str) -> Path:
    """A repository with a built site of one page."""
    for name, text in {
        "README.md": "# Us",
        "CHANGELOG.md": "# Changes & more",
        ".go-version": "1.2",
        "examples/c/meet.c": "int main;",
        "examples/c/__pycache__/x.pyc": "",
        "examples/c/.env": "secret",
        "site/index.html": '<h1 id="us">Us</h1>',
        "site/libraries/ray.html": links,
    }.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (root / "docs").mkdir()
    return root / "site"


def test_sources_are_copied(tmp_path: Path) -> None:
    page = (
        '<a href="../../examples/c/meet.c#L1">c</a> <a href="../../examples/c">all</a>'
        '<a href="../../CHANGELOG.html">x</a> <a href="../../index.html">us</a>'
        '<a href="../../.go-version">go</a> <a href="../index.html#us">index</a>'
    )
    site = made(tmp_path, page)
    assert len(site_links.dead(site)) == 5
    site_links.rewrite(site, tmp_path / "docs")
    assert site_links.dead(site) == []
    text = (site / "libraries/ray.html").read_text()
    assert 'href="../source/examples/c/meet.c.txt#L1"' in text
    assert '<a href="../index.html">us</a>' in text
    assert (site / "source/CHANGELOG.md.txt").read_text() == "# Changes & more"
    assert 'href="meet.c.txt"' in (site / "source/examples/c/index.html").read_text()
    copied = [str(file) for file in (site / "source").rglob("*")]
    assert not [name for name in copied if "pycache" in name or ".env" in name]


def test_dead_links_are_named(tmp_path: Path) -> None:
    site = made(
        tmp_path,
        '<a href="../none.html">a</a> <a href="../index.html#none">b</a> <img src="../p.svg">'
        '<a href="../../../outside">c</a> <a href="../../examples/c/.env">d</a>'
        '<a href="https://example.org/none">e</a>',
    )
    site_links.rewrite(site, tmp_path / "docs")
    assert site_links.dead(site) == [
        "libraries/ray.html: ../none.html: the site has no such page",
        "libraries/ray.html: ../index.html#none: there is no such heading",
        "libraries/ray.html: ../p.svg: the site has no such page",
        "libraries/ray.html: ../../../outside: the site has no such page",
        "libraries/ray.html: ../../examples/c/.env: the site has no such page",
    ]
    assert not (site / "source").exists()
