"""Puts together the licence texts of what is linked into the library or the command.

Used by hatch_build.py for the wheel, by `make install` and by `make binaries`, without any
package:
python licences.py LIBRARY > THIRD_PARTY_LICENSES
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

LICENCE_FILE = re.compile(r"(licen[cs]e|copying|notice|patents)([.-].*)?", re.IGNORECASE)


def third_party_licences(library: Path, root: str) -> str:
    """The licence texts of Go and of every module linked into the library."""
    go = os.environ.get("GO", "go")

    def run(*args: str) -> str:
        return subprocess.run(
            [go, *args], cwd=root, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    goroot = Path(run("env", "GOROOT").strip())
    folders = {f"Go ({run('env', 'GOVERSION').strip()})": goroot}
    for line in run("version", "-m", str(library)).splitlines():
        kind, *words = line.split("\t")[1:] or [""]
        if kind == "dep":
            folders[f"{words[0]} {words[1]}"] = Path(
                run("list", "-m", "-f", "{{.Dir}}", words[0]).strip()
            )
    parts = [f"{library.name} contains the following software, under these licences.\n"]
    for name, folder in folders.items():
        texts = sorted(
            p for p in folder.iterdir() if p.is_file() and LICENCE_FILE.fullmatch(p.name)
        )
        if not texts and folder == goroot:  # a distribution's Go keeps it elsewhere
            texts = sorted(p for p in (Path("/usr/share/doc/golang-go/copyright"),) if p.is_file())
        if not texts:
            raise RuntimeError(f"no licence text found for {name}")
        for path in texts:
            text = path.read_text(encoding="utf-8", errors="replace").strip()
            parts.append(f"{'=' * 78}\n{name}: {path.name}\n{'=' * 78}\n\n{text}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(third_party_licences(Path(sys.argv[1]), str(Path(__file__).resolve().parents[1])))
