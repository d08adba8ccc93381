"""Lightning: a callback for its Trainer."""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from .. import Fence
from .claims import Claims
from .reporter import Reporter


class RallypointCallback(Callback):
    """Reports the steps of a Trainer, and has it save when the job is asked to.

    A directive has all workers save a checkpoint after the same step. It lies beside those of
    the Trainer's ModelCheckpoint, and is what `fit(..., ckpt_path="last")` resumes from while it
    is the newest. While the Trainer saves or validates, the job is not said to hang.

    The folder of the checkpoints is fenced (rallypoint.fence): if another job has written one
    there since this one loaded its own, the next is refused by a FencedError in all workers.
    Checkpoints of weights alone (save_weights_only) are not: callbacks do not see them.

        Trainer(callbacks=[RallypointCallback()])

    Args:
        within: seconds that a validation or a checkpoint may take.
        dirpath: folder of the checkpoints. None: that of the ModelCheckpoint, or "checkpoints" in
            the Trainer's default_root_dir.
        fence: True; False not to fence; or what rallypoint.fence(dirpath, into=True) returned
            before the checkpoint to resume from was chosen. With True the fence is opened when
            fit begins, just after ckpt_path="last" has been looked up.

    Raises:
        ValueError: within is not above 0.
    """

    def __init__(
        self, within: float = 600, dirpath: str | None = None, fence: Fence | bool = True
    ) -> None:
        self._reporter = Reporter(within)
        self._dirpath = dirpath
        self._claims = Claims(fence)

    def _folder(self, trainer: Trainer) -> str:
        own = getattr(trainer.checkpoint_callback, "dirpath", None)
        return self._dirpath or own or os.path.join(trainer.default_root_dir, "checkpoints")

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        """Opens the fence, unless a logger makes a new folder for this process: that is known at
        the start, and empty."""
        given = self._dirpath or getattr(trainer.checkpoint_callback, "dirpath", None)
        if stage == "fit" and (given or not trainer.loggers):
            self._claims.open(self._folder(trainer), trainer.is_global_zero)

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Opens the fence, if setup has not."""
        self._claims.open(self._folder(trainer), trainer.is_global_zero)

    def teardown(self, *_: Any, **__: Any) -> None:
        """Ends what was claimed."""
        self._claims.end()

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """Reports the step, and saves where that is asked for."""
        step = trainer.global_step
        if self._reporter.step(step):
            folder = self._folder(trainer)
            trainer.save_checkpoint(os.path.join(folder, f"last-step={step}.ckpt"))
            self._reporter.back()
            self._reporter.confirm(step)

    def on_save_checkpoint(self, trainer: Trainer, module: LightningModule, _: Any) -> None:
        """Announces the checkpoint, and claims the folder; the next batch ends that."""
        self._reporter.away()
        self._claims.begin()

    def on_train_batch_start(self, *_: Any, **__: Any) -> None:
        """Ends what was announced; after a checkpoint the Trainer has waited for all workers."""
        self._claims.end()
        self._reporter.back()

    def on_validation_start(self, *_: Any) -> None:
        """Announces the validation."""
        self._reporter.away()

    on_test_start = on_predict_start = on_validation_start

    def on_validation_end(self, *_: Any) -> None:
        """Ends what was announced."""
        self._reporter.back()

    on_train_end = on_test_end = on_predict_end = on_validation_end
