"""accelerate: steps and checkpoints of a training loop that has an Accelerator."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator

from .reporter import Reporter


class RallypointProgress:
    """Reports the steps of a training loop, and has the Accelerator save when the job is asked to.

    While the Accelerator saves its state, also where the loop asks for it, the job is not said to
    hang.

        report = RallypointProgress(accelerator, "checkpoints/asked")
        for step, batch in enumerate(data):
            ...
            report(step)

    Args:
        accelerator: the loop's.
        output_dir: where a checkpoint that a directive asks for goes, as for save_state. None
            is what the Accelerator's automatic_checkpoint_naming says.
        within: seconds that a checkpoint may take.

    Raises:
        ValueError: within is not above 0.
    """

    def __init__(
        self, accelerator: Accelerator, output_dir: str | None = None, within: float = 600
    ) -> None:
        self._accelerator, self._output_dir = accelerator, output_dir
        self._reporter = Reporter(within)
        accelerator.register_save_state_pre_hook(self._announce)

    def _announce(self, *_: Any) -> None:
        self._reporter.away()  # the next step ends that

    def __call__(self, step: int) -> None:
        """Reports a step that is done; saves, and blocks meanwhile, where that is asked for.

        Args:
            step: 0 or more, the same in all workers.
        """
        if self._reporter.step(step):
            self._accelerator.save_state(self._output_dir)
            self._reporter.back()
            self._reporter.confirm(step)
