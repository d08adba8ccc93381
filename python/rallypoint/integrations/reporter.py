"""What the callbacks have in common."""

from __future__ import annotations

import time

from .. import busy, directive, progress, saved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .. import Directive


class Reporter:
    """Reports the steps of one worker, and confirms what a directive asks for.

    For one thread.

    Args:
        within: seconds that an evaluation or a checkpoint may take before the worker counts as
            silent again.

    Raises:
        ValueError: within is not above 0.
    """

    def __init__(self, within: float) -> None:
        self._busy = busy("checkpoint or evaluation", within)
        self._away = False
        self._directive: Directive | None = None

    def step(self, step: int) -> bool:
        """Reports a step that is done.

        Args:
            step: 0 or more.

        Returns:
            Whether all workers should save now, and then call confirm.
        """
        self.back()
        self._directive = progress(step) or self._directive
        return self._directive is not None

    def away(self) -> None:
        """Announces that this worker makes no step for a while; again: nothing."""
        if not self._away:
            self._away = True
            self._busy.__enter__()

    def back(self) -> None:
        """Ends what away has announced, if it has."""
        if self._away:
            self._away = False
            self._busy.__exit__(None, None, None)

    def confirm(self, step: int) -> None:
        """Tells that the worker has saved, if it was asked to.

        After anything but a save it blocks until the agent ends this worker, or the directive is
        canceled: the next round would make later steps again.

        Args:
            step: that of the checkpoint.
        """
        asked, self._directive = self._directive, None
        if asked is None:
            return
        saved(step)
        while asked.kind != "save" and directive():
            time.sleep(0.05)
