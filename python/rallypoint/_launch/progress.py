"""How far a worker has come, in the record that its agent made (docs/progress-record.md).

The record is mapped when this module is loaded, or when a template that has loaded it becomes a
worker. From then on a report is one store into memory and one load: no call of the system or the
library. It waits only while the agent asks for something, which is what the load tells. Neither
torch nor the library is loaded.
"""

from __future__ import annotations

import os

from .mapped import map_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .directive import Directive

_FILE = "RALLYPOINT_PROGRESS_FILE"

_MAGIC, _VERSION, _SIZE = b"rp-steps", 1, 64
# The record's words of eight bytes, and what this worker understands of them.
_STEP, _ASKED, _KNOWS = 2, 3, 5
_HOLDS = 1


def _open() -> memoryview:
    """Maps the record; memory of this process's own if there is none, or none that is known."""
    path = os.environ.get(_FILE)
    if path:
        try:
            words = memoryview(map_record(path, "progress", _MAGIC, _VERSION, _SIZE)).cast("q")
            words[_KNOWS] |= _HOLDS  # another process of the worker may be busy: see busy.py
            return words
        except (OSError, ValueError) as e:
            import logging

            logging.getLogger("rallypoint").warning(
                "the steps of this worker are not recorded: %s: %s", path, e
            )
    return memoryview(bytearray(_SIZE)).cast("q")


_words = _open()


def begin() -> None:
    """Maps the record of the worker that this process has become."""
    global _words
    _words = _open()


def progress(step: int) -> Directive | None:
    """Reports the training step that this worker is at, and learns what the job is asked for.

    To be called once a step, where it is done, by one process of each worker; it takes a
    fraction of a microsecond. `rallypoint status`, /metrics and `rallypoint run
    --max-no-progress` then know how far the job is. Steps may jump and go back, as they do
    when a script loads a checkpoint. Without an agent that made a record
    (RALLYPOINT_PROGRESS_FILE) nothing happens.

    Works in threads, and in a forked child, which reports into the record of its parent.

    Args:
        step: 0 or more; anything that is an integer, such as numpy's.

    Returns:
        None; or once for each directive, at the same step in all workers of the job, the
        Directive. The worker then writes a checkpoint and calls saved. While the nodes agree
        on the step, the call waits for them, 10 seconds at most.

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
    if _words[_ASKED]:
        from .directive import reported

        return reported(_words, step.__index__())
    return None


def directive() -> Directive | None:
    """Returns the directive that this worker has been given, while it stands.

    For workers that do not report steps, and for code elsewhere than progress is called. A
    worker that reports steps gets each directive by progress first, so that all workers get
    it at the same step.

    Returns:
        None if there is none. Of several the one that was asked for last.
    """
    if not _words[_ASKED]:
        return None
    from .directive import standing

    return standing(_words)


def leaving() -> bool:
    """Tells whether this worker's round is about to end by a directive for which it has saved.

    Returns:
        True until it has ended, or the directive is withdrawn or over.
    """
    if not _words[_ASKED]:
        return False
    from .directive import ends_round

    return ends_round(_words)


def saved(step: int) -> bool:
    """Tells that this worker has saved what the standing directive asks for.

    When all workers of the job have, its deadline is not waited for. It may be called from
    another thread or a forked child, by a checkpoint that is written in the background.

    Args:
        step: the step that was saved.

    Returns:
        True if that answers a directive; False if none stands, or the step is before the
        directive's.

    Raises:
        TypeError: the step is no integer.
        ValueError: it is negative, or above 2**63 - 1.
    """
    try:
        number = step.__index__()
    except (AttributeError, TypeError):
        raise _refusal(step) from None
    if not 0 <= number < 2**63:
        raise _refusal(step)
    if not _words[_ASKED]:
        return False
    from .directive import acknowledge

    return acknowledge(_words, number)


def _refusal(step: object) -> TypeError | ValueError:
    try:
        number = int(step.__index__())  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return TypeError(f"a step is an integer, not {step!r:.100} ({type(step).__name__})")
    bits = number.bit_length()
    text = str(number) if bits <= 128 else f"a number of {bits} bits"
    return ValueError(f"a step is from 0 to {2**63 - 1}, not {text}")
