"""accelerate: steps and checkpoints of a training loop that has an Accelerator."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator

from .. import Fence
from .claims import Claims
from .reporter import Reporter


class RallypointProgress:
    """Reports the steps of a training loop, and has the Accelerator save when the job is asked to.

    While the Accelerator saves its state, also where the loop asks for it, the job is not said to
    hang.

    The folder is fenced (rallypoint.fence): if another job has written a state there since this
    object was made, the next save_state is refused by a FencedError in all processes. So make it
    before the state is loaded.

        report = RallypointProgress(accelerator, "checkpoints/asked")
        for step, batch in enumerate(data):
            ...
            report(step)

    Args:
        accelerator: the loop's.
        output_dir: where a checkpoint that a directive asks for goes, as for save_state. None
            is what the Accelerator's automatic_checkpoint_naming says.
        within: seconds that a checkpoint may take.
        fence: True, to fence output_dir or else the Accelerator's project_dir; False not to; or
            what rallypoint.fence(folder, into=True) returned.

    Raises:
        ValueError: within is not above 0.
        StateError, DeadlineError, UnsupportedError, InvalidError: as in rallypoint.fence.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        output_dir: str | None = None,
        within: float = 600,
        fence: Fence | bool = True,
    ) -> None:
        self._accelerator, self._output_dir = accelerator, output_dir
        self._reporter = Reporter(within)
        self._claims = Claims(fence)
        self._claims.open(output_dir or accelerator.project_dir, accelerator.is_main_process)
        # Not by register_save_state_pre_hook: FSDP's and DeepSpeed's models are written before it.
        self._save_state = accelerator.save_state
        setattr(accelerator, "save_state", self._announce_and_save)  # noqa: B010

    def _announce_and_save(self, *args: Any, **more: Any) -> Any:
        self._reporter.away()  # the next step ends that
        self._claims.begin()  # and this: until then all processes have saved
        return self._save_state(*args, **more)

    def __call__(self, step: int) -> None:
        """Reports a step that is done; saves, and blocks meanwhile, where that is asked for.

        Args:
            step: 0 or more, the same in all workers.
        """
        self._claims.end()
        if self._reporter.step(step):
            self._accelerator.save_state(self._output_dir)
            self._reporter.back()
            self._reporter.confirm(step)
