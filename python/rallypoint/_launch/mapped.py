"""The records that a worker's agent makes, in memory that both processes have mapped."""

from __future__ import annotations

import mmap
import os


def map_record(path: str, kind: str, magic: bytes, version: int, size: int) -> mmap.mmap:
    """Maps a record, which begins with its magic, version and size, or says why it is none."""
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        length = os.fstat(fd).st_size
        if length != size:
            raise ValueError(f"it has {length} bytes, a {kind} record has {size}")
        record = mmap.mmap(fd, size)
    finally:
        os.close(fd)
    said = tuple(int.from_bytes(record[i : i + 4], "little") for i in (8, 12))
    if record[:8] != magic:
        raise ValueError(f"it is not a {kind} record")
    if said != (version, size):
        raise ValueError(
            f"it is a {kind} record of version {said[0]} with {said[1]} bytes, "
            f"this release knows version {version} with {size}"
        )
    return record
