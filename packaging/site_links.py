"""Makes the links of the built site lead somewhere, and checks them all: part of `make site`.

The pages link to sources beside docs/, which the site generator leaves as they are. Each such
file is copied into the site, as text that a browser shows; a folder gets a page that lists it.
"""

from __future__ import annotations

import functools
import html
import posixpath
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
HREF = re.compile(r'(?<=\bhref=")([^"#]+)')
# What stays on the machine that builds.
NOT_SOURCES = re.compile(r"(^|/)(__pycache__|target|node_modules|build|\.(?!go-version)[^/]*)(/|$)")


class Page(HTMLParser):
    """The links of a page, and the anchors to which links may lead."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            elif value and (name == "id" or (tag, name) == ("a", "name")):
                self.anchors.add(value)


def source(root: Path, path: str) -> Path | None:
    """The file or folder of the repository that a link means. The generator has written
    .html for .md, and index.html for README.md."""
    path = re.sub(r"(^|/)index\.html$", r"\1README.html", path)
    for candidate in (root / path, (root / path).with_suffix(".md")):
        if candidate.exists() and candidate.is_relative_to(root) and not NOT_SOURCES.search(path):
            return candidate
    return None


def shown(site: Path, root: Path, file: Path) -> Path:
    """The place in the site of a source, which is copied there. The README is the first page."""
    if file == root / "README.md":
        return site / "index.html"
    place = site / "source" / file.relative_to(root)
    if file.is_dir():
        place /= "index.html"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(listing(site, root, file, place))
    else:
        place = place.with_name(place.name.lstrip(".") + ".txt")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    return place


def listing(site: Path, root: Path, folder: Path, place: Path) -> str:
    name = html.escape(str(folder.relative_to(root)))
    rows = [
        f'<li><a href="{html.escape(relative(place.parent, shown(site, root, file)))}">'
        f"{html.escape(str(file.relative_to(folder)))}</a></li>"
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not NOT_SOURCES.search(str(file.relative_to(root)))
    ]
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{name}</title>\n'
        f"<h1>{name}</h1>\n<ul>\n" + "\n".join(rows) + "\n</ul>\n</html>\n"
    )


def relative(folder: Path, target: Path) -> str:
    return posixpath.relpath(target.as_posix(), folder.as_posix())


def rewrite(site: Path, docs: Path) -> None:
    """Links of the site's pages that leave it lead to copies in it afterwards."""
    root = docs.parent

    @functools.cache  # the pages of a folder have most of their links in common
    def place(folder: Path, href: str) -> str:
        link = html.unescape(href)
        path = posixpath.normpath((docs / folder.relative_to(site) / unquote(link)).as_posix())
        if urlsplit(link).scheme or Path(path).is_relative_to(docs):
            return href
        if not Path(path).is_relative_to(root):
            return href
        file = source(root, str(Path(path).relative_to(root)))
        return html.escape(relative(folder, shown(site, root, file))) if file else href

    for page in sorted(site.rglob("*.html")):
        text = page.read_text()
        page.write_text(HREF.sub(lambda match, at=page.parent: place(at, match[1]), text))


def dead(site: Path) -> list[str]:
    """Each link of the site that leads nowhere, with its page. Other hosts are not asked."""
    pages = {file.resolve(): Page(file) for file in site.rglob("*.html")}
    site = site.resolve()

    @functools.cache
    def target_of(base: Path, path: str) -> Path | None:
        target = (base / unquote(path).lstrip("/")).resolve()
        if target.is_dir():
            target /= "index.html"
        return target if target.is_file() and target.is_relative_to(site) else None

    found = []
    for file, page in sorted(pages.items()):
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            base = site if parts.path.startswith("/") else file.parent
            target = target_of(base, parts.path) if parts.path else file
            name = file.relative_to(site)
            if target is None:
                found.append(f"{name}: {link}: the site has no such page")
            elif (
                parts.fragment
                and target in pages
                and unquote(parts.fragment) not in pages[target].anchors
            ):
                found.append(f"{name}: {link}: there is no such heading")
    return found


def main() -> int:
    site = Path(sys.argv[1]).resolve()
    rewrite(site, ROOT / "docs")
    found = dead(site)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
