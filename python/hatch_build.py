"""Puts the library into the wheel and names the wheel after its platform.

The library is loaded by ctypes, not linked against Python, so that one wheel
per platform serves every Python: py3-none-manylinux_2_34_x86_64 and the like.
The platform is read from the library itself (its machine and the newest glibc
symbol it asks for), so that a cross-built one is named rightly, too.

RALLYPOINT_LIB names a library that is ready; without it, make builds one.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}

# What a library may ask of a machine: glibc, nothing else.
ALLOWED = re.compile(r"(libc|libdl|libm|libpthread|libresolv|librt|ld-linux-[\w-]+)\.so\.\d+")

LICENCE_FILE = re.compile(r"(licen[cs]e|copying|notice|patents)([.-].*)?", re.IGNORECASE)


def platform_tag(library: Path) -> str:
    """The manylinux platform that the library runs on."""
    with library.open("rb") as f:
        elf = ELFFile(f)
        machine = MACHINES[elf["e_machine"]]
        needed = [t.needed for t in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
        foreign = [name for name in needed if not ALLOWED.fullmatch(name)]
        if foreign:
            raise RuntimeError(
                f"{library} needs {', '.join(foreign)}, which a wheel may not assume"
            )
        minor = 17  # the oldest glibc that a manylinux tag can name
        for _, versions in elf.get_section_by_name(".gnu.version_r").iter_versions():
            for version in versions:
                if m := re.fullmatch(r"GLIBC_2\.(\d+)(\.\d+)?", version.name):
                    minor = max(minor, int(m[1]))
    tag = f"manylinux_2_{minor}_{machine}"
    return f"{tag}.manylinux2014_{machine}" if minor == 17 else tag  # the same, as older pips say


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
    parts = ["librallypoint.so contains the following software, under these licences.\n"]
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


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        library = os.environ.get("RALLYPOINT_LIB")
        if not library:
            library = "build/librallypoint.so"
            subprocess.run(["make", library], cwd=root, check=True)
        path = root / library
        notices = root / "build" / "THIRD_PARTY_LICENSES"
        notices.parent.mkdir(exist_ok=True)
        notices.write_text(third_party_licences(path, self.root), encoding="utf-8")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(path)}"
        build_data["force_include"][str(path)] = "rallypoint/librallypoint.so"
        build_data["force_include"][str(notices)] = "rallypoint/THIRD_PARTY_LICENSES"
