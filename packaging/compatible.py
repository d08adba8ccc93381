"""Writes docs/compatible.md, the page that counts what is compared with torch, from the files of
the tests and from what their last runs recorded in docs/compatible.json.

    python packaging/compatible.py                   # make reference
    rallypoint prove --json SCRIPT | python packaging/compatible.py prove

A test compares the page with what this writes (python/tests/docs/test_compatible.py).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "compatible.md"
RUNS = ROOT / "docs" / "compatible.json"

# What packaging/torch_suites.py runs torch's own tests with.
SUITES = TORCHS, OURS, WARM, STORE = "torch's agent", "Rallypoint's agent", "warm workers", "store"

# A name of torch's tests, which the lists shorten: test_x_{a,b}, …_rest, ..._rest, / _rest.
TORCH_TEST = re.compile(
    r"(?<![\w/…`])(?:test_|…_?|\.\.\._)\w*(?:\{[^}]*\}\w*)*(?:(?:…|\.\.\.)_?\w*)?"
    r"|(?<=[/,] )_\w+"
)

PAGE = """\
# How compatible

<!-- Written by `make reference` from the tests. Do not edit. -->

This page lists what we compare with torch, how much of it, and which test does it. Each number is
counted from the files of the tests or recorded by their last run, and a test fails when this page
is out of date. `make test` runs in CI; the others are run by hand before a release.

## Programs of torch

{programs}

Torch's tests are those of pytorch {tests}, from Debian's sources, run with torch {torch}.
Tests are left out that mock torch's own classes, or that check its server's messages, socket or
constructor.

## Versions

{versions}

{misbehave}**Next:** [coming from torchrun](torchrun.md) · [every difference](deviations.md) ·
[each test of torch and ours](ported-tests.md).
"""


MISBEHAVE = """\
## Nodes that misbehave

[`rallypoint prove`](prove.md) on a plain DDP script without a checkpoint
([`ddp.py`](../packaging/tests/ddp.py)), torch {torch}: how long the job stands still. Failed means
that it was not [as it must be](prove.md) 20 s after the fault. Recorded by `make test-prove` on two
cores; torchrun has its own backend, c10d.

{table}

Rallypoint survived {rallypoint} of {scenarios}, torchrun {torchrun} of {scenarios}. A hang costs
the 5 s of `--hang-timeout`, and more. [What a job survives](losses.md) lists every loss.

"""


def names_of_torch(text: str) -> list[str]:
    """The names of torch's tests in a line of a list."""
    found = TORCH_TEST.findall(re.sub(r"`[^`]*`", "", text))
    return [name for name in found if name.strip("._…") and not name.endswith("_test")]


def rows(page: Path) -> dict[str, list[tuple[str, str]]]:
    """The rows of a page's tables of two columns, by the heading above them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for part in re.split(r"^##+ ", page.read_text(), flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        table = re.findall(r"^\| (.*?) \| (.*) \|$", body, flags=re.MULTILINE)
        found[heading] = table[2:]  # below the head and its rule
    return found


def table(head: str, lines: list[str]) -> str:
    rule = "|".join([" --- "] * head.count("|"))
    return "\n".join([f"| {head} |", f"|{rule}| --- |", *(f"| {line} |" for line in lines)])


def pinned(file: str, package: str = "torch") -> str:
    text = (ROOT / "requirements" / file).read_text()
    return re.search(rf"^{package}==([\d.]+)", text, re.MULTILINE)[1]  # type: ignore[index]


def ordered(versions: Iterable[str]) -> list[str]:
    return sorted(versions, key=lambda version: [int(part) for part in version.split(".")])


def programs(counts: dict[str, dict[str, int]]) -> list[str]:
    def suite(what: str, kind: str) -> list[str]:
        if kind not in counts:
            return []
        ran = counts[kind]["passed"] + counts[kind]["failed"]
        return [f"{what} | {counts[kind]['passed']} of {ran} pass | `make test-torch-suites`"]

    torch = pinned("dev.in")
    store = ROOT / "tcpstore" / "testdata"
    files = ROOT / "filestore" / "testdata" / "golden"
    sessions = [path.stem.partition("-")[0] for path in (store / "golden-older").glob("*.json")]
    older = [version for version in sessions if ordered([version, "2.2"])[0] == "2.2"]
    versions = ordered(older)
    lines = json.loads((ROOT / "agent" / "testdata" / "torchrun" / "cases.json").read_text())
    tests = [(names_of_torch(first), second) for first, second in all_ported()]
    apply = sum(len(names) for names, ours in tests if not ours.startswith("Not applicable"))
    listed = sum(len(names) for names, _ in tests)
    return [
        *suite("torch's tests of its agent and launcher, on our backend", TORCHS),
        *suite("torch's tests of its agent, with our agent", OURS),
        *suite("torch's tests of its launcher, with ours and `--warm`", WARM),
        *suite("torch's tests of TCPStore: torch's client, our server", STORE),
        f"calls of TCPStore's client {torch}, byte by byte"
        f" | {len(list((store / 'golden').glob('*.json')))} | `tcpstore.TestGolden`",
        f"whole sessions of TCPStore's clients {versions[0]} to {versions[-1]}"
        f" | {len(older)} | `tcpstore.TestGoldenOlder`",
        f"contents of FileStore's file {torch}, byte by byte"
        f" | {len(list(files.glob('*.bin')))} | `filestore.TestGoldenSession`",
        "command lines of torchrun: environment, output, exit code"
        f" | {len(lines)} | `cli.TestRunAsTorchrun`",
        "torch's tests of rendezvous, agent and launcher that have one of ours beside them"
        f" | {apply} of {listed}; the others do not apply | [list](ported-tests.md)",
    ]


def all_ported() -> list[tuple[str, str]]:
    """The rows of docs/ported-tests.md that name tests of torch."""
    page = rows(ROOT / "docs" / "ported-tests.md")
    return [row for table in page.values() for row in table if names_of_torch(row[0])]


def versions() -> list[str]:
    older = ordered(
        {path.stem.removeprefix("torch-") for path in (ROOT / "requirements").glob("torch-*.in")}
        - {"suites"}
    )
    tried = []
    for page in sorted((ROOT / "docs" / "libraries").glob("*.md")):
        if found := re.search(r"\bTried with (\S+ \d[\w.]*\w)", page.read_text()):
            tried.append(f"[{found[1]}](libraries/{page.name})")
    return [
        f"torch {pinned('dev.in')} | `make test`",
        f"torch {', '.join(older)} | `make test-long`",
        "Python 3.9 to 3.13 | `make test-release`",
        f"{', '.join(tried)} | `make test-libraries`",
    ]


def misbehave(prove: dict[str, Any] | None) -> str:
    """What each launcher makes of each scenario; nothing before a first run."""
    if prove is None:
        return ""
    lines: dict[str, dict[str, str]] = {}
    survived = {"rallypoint": 0, "torchrun": 0}
    for result in prove["results"]:
        good = result["outcome"] == "survived"
        survived[result["launcher"]] += good
        text = f"{result['lost_s']:.1f} s" if good else result["outcome"]
        lines.setdefault(result["scenario"], {})[result["launcher"]] = text
    shown = [f"`{name}` | {of['rallypoint']} | {of['torchrun']}" for name, of in lines.items()]
    head = "scenario | `rallypoint run` | torchrun"
    return MISBEHAVE.format(
        torch=prove["torch"], table=table(head, shown), scenarios=len(lines), **survived
    )


def generate() -> str:
    runs = json.loads(RUNS.read_text())
    suites = runs["suites"]
    return PAGE.format(
        programs=table("what | how much | checked by", programs(suites["counts"])),
        tests=suites["tests"],
        torch=suites["torch"],
        versions=table("version | checked by", versions()),
        misbehave=misbehave(runs.get("prove")),
    )


def record(part: str, found: dict[str, Any]) -> None:
    """Keeps what a run has found, and writes the page."""
    runs = json.loads(RUNS.read_text()) if RUNS.exists() else {}
    RUNS.write_text(json.dumps({**runs, part: found}, indent=1, sort_keys=True) + "\n")
    TARGET.write_text(generate())


def main() -> int:
    if sys.argv[1:] == ["prove"]:
        found = json.load(sys.stdin)
        kept = ("scenario", "launcher", "outcome", "lost_s")
        results = [{name: result.get(name) for name in kept} for result in found["results"]]
        record("prove", {"torch": found["torch"], "results": results})
    else:
        TARGET.write_text(generate())
    return 0


if __name__ == "__main__":
    sys.exit(main())
