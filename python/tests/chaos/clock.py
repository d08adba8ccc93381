"""Moves the wall clock of one running process, as a bad time server would a machine's.

Programs ask the kernel for the time through a page that is mapped into each of them, the
vDSO. In the process's own copy of it, the functions that tell the time of day are replaced
by ones that add an offset; monotonic clocks stay as they are. Linux on x86-64 only, and it
needs the rights of a debugger.
"""

from __future__ import annotations

import platform
import struct
import time
from pathlib import Path

import psutil

AVAILABLE = platform.machine() == "x86_64"


def _replacements(offset: int) -> dict[str, bytes]:
    """The machine code that takes the place of each function."""
    added = struct.pack("<i", offset).hex()
    code = {
        # The system call; if it went well and the clock is CLOCK_REALTIME or its coarse
        # sister (5), add to the seconds.
        "clock_gettime": f"b8e4000000 0f05 85c0 7510 85ff 7405 83ff05 7507 488106{added} c3",
        "gettimeofday": f"b860000000 0f05 4885ff 7407 488107{added} c3",
        "time": f"b8c9000000 0f05 4805{added} 4885ff 7403 488907 c3",
    }
    return {f"__vdso_{name}": bytes.fromhex(text) for name, text in code.items()}


class Clock:
    """The wall clock of a process."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._folder = Path(f"/proc/{pid}")
        for line in (self._folder / "maps").read_text().splitlines():
            if line.endswith("[vdso]"):
                begin, end = (int(x, 16) for x in line.split()[0].split("-"))
                break
        else:
            raise OSError(f"process {pid} has no vDSO")
        self._begin, self._end = begin, end
        with (self._folder / "mem").open("rb", buffering=0) as memory:
            memory.seek(begin)
            self._image = memory.read(end - begin)

    def move(self, seconds: int) -> None:
        """Puts the clock so much ahead of the machine's."""
        functions = _functions(self._image)
        for name, code in _replacements(seconds).items():
            at, size = functions[name]
            assert len(code) <= size, f"{name} has only {size} bytes"
            self._write(at, code)

    def mend(self) -> None:
        """Puts the clock right."""
        for name, code in _replacements(0).items():
            at, _ = _functions(self._image)[name]
            self._write(at, self._image[at : at + len(code)])

    def _write(self, at: int, code: bytes) -> None:
        while True:
            self._process.suspend()
            try:
                if not self._inside():
                    with (self._folder / "mem").open("r+b", buffering=0) as memory:
                        memory.seek(self._begin + at)
                        memory.write(code)
                    return
            finally:
                self._process.resume()
            time.sleep(0.001)

    def _inside(self) -> bool:
        """Whether a thread stands in what would change, or still runs."""
        for task in (self._folder / "task").iterdir():
            while (task / "stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
                time.sleep(0.001)
            where = int((task / "syscall").read_text().split()[-1], 16)
            if self._begin <= where < self._end:
                return True
        return False


def _functions(image: bytes) -> dict[str, tuple[int, int]]:
    """Where the functions of an ELF image are, and how long."""
    headers, count = struct.unpack_from("<Q", image, 32)[0], struct.unpack_from("<H", image, 56)[0]
    dynamic: dict[int, int] = {}
    for i in range(count):
        kind, _, offset, *_, size, _, _ = struct.unpack_from("<IIQQQQQQ", image, headers + 56 * i)
        if kind == 2:
            dynamic = dict(struct.iter_unpack("<QQ", image[offset : offset + size]))
    names, symbols = dynamic[5], dynamic[6]
    found: dict[str, tuple[int, int]] = {}
    for at in range(symbols, names, 24):
        name, _, _, _, value, size = struct.unpack_from("<IBBHQQ", image, at)
        end = image.index(b"\0", names + name)
        found[image[names + name : end].decode()] = (value, size)
    return found
