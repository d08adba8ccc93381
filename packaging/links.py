"""Fetches what the pages link to on other hosts: `make check-links`.

The tests look at the form of these links without a network (python/tests/docs/test_docs.py).
"""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(((?!mailto:)[a-z][a-z0-9+.-]*:[^()\s]*)\)|<(https?://[^>\s]+)>")
SECONDS = 20


def external() -> dict[str, list[str]]:
    """The pages that name each link to another host, outside of code."""
    pages: dict[str, list[str]] = {}
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
        for match in LINK.finditer(CODE.sub("", page.read_text())):
            pages.setdefault(match[1] or match[2], []).append(str(page.relative_to(ROOT)))
    return pages


def problem(link: str) -> str:
    """What is wrong with a link; "" if its page exists."""
    request = urllib.request.Request(link, headers={"User-Agent": "Mozilla/5.0 (link check)"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            answer.read(1)
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except OSError as error:
        return str(getattr(error, "reason", error))
    return ""


def main() -> int:
    broken = 0
    for link, pages in external().items():
        text = problem(link)
        if text:
            broken += 1
            print(f"{', '.join(pages)}: {link}: {text}")
    print(f"{len(external())} links to other hosts, {broken} that do not answer")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
