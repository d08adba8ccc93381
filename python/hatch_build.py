"""Puts the library into the wheel and names the wheel after its platform.

The library is loaded by ctypes, not linked against Python, so that one wheel
per platform serves every Python: py3-none-manylinux_2_34_x86_64 and the like.
The platform is read from the library itself (its machine and the newest glibc
symbol it asks for), so that a cross-built one is named rightly, too.

RALLYPOINT_LIB names a library that is ready; without it, make builds one, outside the
source folder. An editable install has no wheel to hold the library: the package's folder
gets a link to the one in build, so that the next `make` is used at once.

rallypoint/_native/abi.py is written from the header by each build, and is in no repository.

musl cannot load a library written in Go while a process runs. A wheel for it carries the
static command instead, which RALLYPOINT_COMMAND names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packaging"))
import python_bindings

from licences import third_party_licences

LIBRARY = "librallypoint.so"
COMMAND = "rallypoint"
MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}

# What a library may ask of a machine: glibc, nothing else.
ALLOWED = re.compile(r"(libc|libdl|libm|libpthread|libresolv|librt|ld-linux-[\w-]+)\.so\.\d+")


def platform_tag(binary: Path) -> str:
    """The platform that a library runs on, or a static command where there is no glibc."""
    with binary.open("rb") as f:
        elf = ELFFile(f)
        machine = MACHINES[elf["e_machine"]]
        if elf.get_section_by_name(".dynamic") is None:
            return f"musllinux_1_1_{machine}"
        needed = [t.needed for t in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
        foreign = [name for name in needed if not ALLOWED.fullmatch(name)]
        if foreign:
            raise RuntimeError(f"{binary} needs {', '.join(foreign)}, which a wheel may not assume")
        minor = 17  # the oldest glibc that a manylinux tag can name
        for _, versions in elf.get_section_by_name(".gnu.version_r").iter_versions():
            for version in versions:
                if m := re.fullmatch(r"GLIBC_2\.(\d+)(\.\d+)?", version.name):
                    minor = max(minor, int(m[1]))
    tag = f"manylinux_2_{minor}_{machine}"
    return f"{tag}.manylinux2014_{machine}" if minor == 17 else tag  # the same, as older pips say


def build(root: Path, library: Path) -> None:
    """Builds the library from the sources, as pip does with an sdist.

    What fails ends the build with one line: of an exception pip would show the calls of
    pip and hatchling alone.
    """
    wanted = (root / ".go-version").read_text().strip()
    tools = {
        "make": "make",
        os.environ.get("GO", "go"): f"Go {wanted} or newer (https://go.dev/dl)",
        os.environ.get("CC", "gcc"): "a C compiler such as gcc, with the headers of the C library",
    }
    missing = [need for tool, need in tools.items() if shutil.which(tool) is None]
    if missing:
        sys.exit(
            "pip builds Rallypoint from its sources here, and that needs what is not on PATH: "
            f"{'; '.join(missing)}. Install it, or install a wheel (docs/install.md)"
        )
    if subprocess.run(["make", f"LIBRARY={library}", str(library)], cwd=root).returncode:
        sys.exit("Rallypoint's library was not built; what make says is above")


def link_to(library: Path, link: Path) -> None:
    """Puts a link to the library there, relative so that the folder may be moved."""
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(library.resolve(), link.parent.resolve()))


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        self.folder = tempfile.TemporaryDirectory(prefix="rallypoint-")  # until the wheel is built
        command = os.environ.get("RALLYPOINT_COMMAND")
        ready = command or os.environ.get("RALLYPOINT_LIB")
        if ready:
            path = root / ready
        else:
            path = (root / "build" if version == "editable" else Path(self.folder.name)) / LIBRARY
            build(root, path)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(path)}"
        if version == "editable":
            link_to(path, root / "python" / "rallypoint" / LIBRARY)
            python_bindings.TARGET.write_text(python_bindings.generate())
            return
        declarations = Path(self.folder.name) / "abi.py"
        declarations.write_text(python_bindings.generate())
        notices = Path(self.folder.name) / "THIRD_PARTY_LICENSES"
        notices.write_text(third_party_licences(path, self.root), encoding="utf-8")
        name = COMMAND if command else LIBRARY
        build_data["force_include"][str(path)] = f"rallypoint/{name}"
        build_data["force_include"][str(declarations)] = "rallypoint/_native/abi.py"
        build_data["force_include"][str(notices)] = "rallypoint/THIRD_PARTY_LICENSES"
