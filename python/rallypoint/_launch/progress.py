"""How far a worker has come, in the record that its agent made (docs/progress.md).

The record is mapped when this module is loaded. From then on a report is one store into
memory: no call of the system or the library, and nothing that can wait. Neither torch nor
the library is loaded.
"""

from __future__ import annotations

import mmap
import os

_FILE = "RALLYPOINT_PROGRESS_FILE"

_MAGIC, _VERSION, _SIZE = b"rp-steps", 1, 64
_STEP = 2  # the record's third word of eight bytes


def _open() -> memoryview:
    """Maps the record; memory of this process's own if there is none, or none that is known."""
    path = os.environ.get(_FILE)
    if path:
        try:
            return memoryview(_map(path)).cast("q")
        except (OSError, ValueError) as e:
            import logging

            logging.getLogger("rallypoint").warning(
                "the steps of this worker are not recorded: %s: %s", path, e
            )
    return memoryview(bytearray(_SIZE)).cast("q")


def _map(path: str) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        length = os.fstat(fd).st_size
        if length != _SIZE:
            raise ValueError(f"it has {length} bytes, a progress record has {_SIZE}")
        record = mmap.mmap(fd, _SIZE)
    finally:
        os.close(fd)
    version, size = (int.from_bytes(record[i : i + 4], "little") for i in (8, 12))
    if record[:8] != _MAGIC:
        raise ValueError("it is no progress record")
    if (version, size) != (_VERSION, _SIZE):
        raise ValueError(
            f"it is a progress record of version {version} with {size} bytes, "
            f"this release knows version {_VERSION} with {_SIZE}"
        )
    return record


_words = _open()


def progress(step: int) -> None:
    """Reports the training step that this worker is at.

    To be called once a step, by one process of each worker; it takes a fraction of a
    microsecond. `rallypoint status`, /metrics and `rallypoint run --max-no-progress` then
    know how far the job is. Steps may jump and go back, as they do when a script loads a
    checkpoint. Without an agent that made a record (RALLYPOINT_PROGRESS_FILE) nothing
    happens.

    Works in threads, and in a forked child, which reports into the record of its parent.

    Args:
        step: 0 or more; anything that is an integer, such as numpy's.

    Raises:
        TypeError: the step is no integer.
        ValueError: it is negative, or above 2**63 - 1.
    """
    try:
        if step < 0:
            raise ValueError
        _words[_STEP] = step
    except (TypeError, ValueError):
        raise _refusal(step) from None


def _refusal(step: object) -> TypeError | ValueError:
    try:
        number = int(step.__index__())  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return TypeError(f"a step is an integer, not {step!r:.100} ({type(step).__name__})")
    bits = number.bit_length()
    text = str(number) if bits <= 128 else f"a number of {bits} bits"
    return ValueError(f"a step is from 0 to {2**63 - 1}, not {text}")
