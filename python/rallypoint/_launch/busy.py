"""What a worker announces: for a while it makes no step, and means to (docs/progress-record.md)."""

from __future__ import annotations

import threading
import time

from . import progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

_lock = threading.Lock()
_until: list[float] = []  # of each stretch that is not over


class busy:
    """Announces a stretch in which this worker makes no step and means to.

    A context manager, for an evaluation, a checkpoint, or whatever else takes longer than steps:
    within it the job is not said to hang (`rallypoint run --hang-timeout`), whatever its other
    workers wait for. To be used by one worker or by all.

        with rallypoint.busy("checkpoint", within=600):
            save(model)

    Stretches may lie within each other and in several threads; the one that lasts longest counts.
    Entering and leaving is a store into memory, as progress is; without an agent that made a
    record nothing happens.

    Args:
        what: what the worker does, for readers of the program.
        within: seconds after which it counts as silent again, if it has not left by then.

    Raises:
        ValueError: within is not above 0.
    """

    def __init__(self, what: str, within: float = 600) -> None:
        if not within > 0:
            raise ValueError(f"busy({what!r:.100}): within is {within}, it must be greater than 0")
        self.what, self.within = what, min(within, 1e9)
        self._entered: list[float] = []

    def __enter__(self) -> busy:
        until = time.monotonic() + self.within
        self._entered.append(until)
        with _lock:
            _until.append(until)
            self._announce()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _lock:
            _until.remove(self._entered.pop())
            self._announce()

    @staticmethod
    def _announce() -> None:
        """Writes until when the worker is busy, in milliseconds above the word's first byte."""
        until = int(max(_until) * 1000) + 1 if _until else 0
        words = progress._words
        words[progress._KNOWS] = words[progress._KNOWS] & 0xFF | until << 8
