"""Lightning: a callback for its Trainer."""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from .reporter import Reporter


class RallypointCallback(Callback):
    """Reports the steps of a Trainer, and has it save when the job is asked to.

    A directive has all workers save a checkpoint after the same step. It lies beside those of
    the Trainer's ModelCheckpoint, and is what `fit(..., ckpt_path="last")` resumes from while it
    is the newest. While the Trainer saves or validates, the job is not said to hang.

        Trainer(callbacks=[RallypointCallback()])

    Args:
        within: seconds that a validation or a checkpoint may take.
        dirpath: folder of the checkpoints. None: that of the ModelCheckpoint, or "checkpoints" in
            the Trainer's default_root_dir.

    Raises:
        ValueError: within is not above 0.
    """

    def __init__(self, within: float = 600, dirpath: str | None = None) -> None:
        self._reporter = Reporter(within)
        self._dirpath = dirpath

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """Reports the step, and saves where that is asked for."""
        step = trainer.global_step
        if self._reporter.step(step):
            own = getattr(trainer.checkpoint_callback, "dirpath", None)
            folder = self._dirpath or own or os.path.join(trainer.default_root_dir, "checkpoints")
            trainer.save_checkpoint(os.path.join(folder, f"last-step={step}.ckpt"))
            self._reporter.back()
            self._reporter.confirm(step)

    def on_save_checkpoint(self, trainer: Trainer, module: LightningModule, _: Any) -> None:
        """Announces the checkpoint; the next batch ends that."""
        self._reporter.away()

    def on_validation_start(self, *_: Any) -> None:
        """Announces the validation."""
        self._reporter.away()

    on_test_start = on_predict_start = on_validation_start

    def on_validation_end(self, *_: Any) -> None:
        """Ends what was announced."""
        self._reporter.back()

    on_train_batch_start = on_train_end = on_test_end = on_predict_end = on_validation_end
