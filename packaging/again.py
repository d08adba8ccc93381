"""Runs Go tests once more that have failed, as `make test-go` does.

    python packaging/again.py EVENTS FLAKY -- go test OPTIONS...

EVENTS is what `go test -json` has written. Of each package the tests that failed are run once
more, by themselves, and that run decides; FLAKY gets a line for each test that has passed only
then. A data race, a panic, a time-out, a goroutine that is left and a package that cannot be built
are final for their package; the other packages' tests are run once more all the same. More than
MOST failed tests are final, too: they have another cause than bad luck. It exits with 0 if nothing
has failed in the end.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

MOST = 5
FINAL = ("panic: ", "fatal error: ", "WARNING: DATA RACE")


def failed(events: Path) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Of each package the failed tests to be run once more; the packages that may not, and why."""
    tests: dict[str, list[str]] = {}
    packages: set[str] = set()
    seen: dict[str, str] = {}
    for line in events.read_text(errors="replace").splitlines():
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        package, test = event.get("Package", ""), event.get("Test")
        output = event.get("Output", "")
        if output.startswith(FINAL):
            seen.setdefault(package, output.strip())
        if event["Action"] != "fail":
            continue
        if test is None:
            packages.add(package)
        elif "/" not in test:
            tests.setdefault(package, []).append(test)
    final = {
        package: seen.get(package, "no test of it has failed, but the package has")
        for package in sorted(packages)
        if package in seen or package not in tests
    }
    return {p: t for p, t in sorted(tests.items()) if p not in final}, final


def main(arguments: list[str]) -> int:
    events, flaky, dashes, *command = arguments
    if dashes != "--" or not command:
        sys.exit(__doc__)
    again, final = failed(Path(events))
    for package, why in final.items():
        print(f"==> not run once more: {package}: {why}")
    if not again and not final:
        print("==> go test has failed, but none of its packages")
        return 1
    if sum(map(len, again.values())) > MOST:
        print(f"==> not run once more: more than {MOST} tests have failed")
        return 1
    code = 1 if final else 0
    for package, names in again.items():
        some = "|".join(map(re.escape, names))
        if subprocess.run([*command, "-count=1", "-run", f"^({some})$", package]).returncode:
            print(f"==> failed when run once more, too: {package}: {' '.join(names)}")
            code = 1
            continue
        print(f"==> passed only when run once more: {package}: {' '.join(names)}")
        with open(flaky, "a") as file:
            file.writelines(f"{package}.{name}\n" for name in names)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
