"""transformers: a callback for its Trainer."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .reporter import Reporter


class RallypointCallback(TrainerCallback):
    """Reports the steps of a Trainer, and has it save when the job is asked to.

    A directive has all workers save a checkpoint after the same step, whatever the Trainer's
    save_strategy. While it saves or evaluates, the job is not said to hang.

        Trainer(model, arguments, callbacks=[RallypointCallback()])

    Args:
        within: seconds that an evaluation or a checkpoint may take.

    Raises:
        ValueError: within is not above 0.
    """

    def __init__(self, within: float = 600) -> None:
        self._reporter = Reporter(within)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Reports the step."""
        control.should_save |= self._reporter.step(state.global_step)
        return self.on_epoch_end(args, state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Announces what follows."""
        if control.should_save or control.should_evaluate:
            self._reporter.away()
        return control

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Announces an evaluation outside of the training."""
        self._reporter.away()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Ends what was announced, unless a checkpoint follows."""
        if not control.should_save:
            self._reporter.back()

    on_predict = on_evaluate

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Confirms that the worker has saved."""
        self._reporter.back()
        self._reporter.confirm(state.global_step)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Ends what was announced."""
        self._reporter.back()
