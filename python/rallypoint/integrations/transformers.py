"""transformers: a callback for its Trainer."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .. import Fence
from .claims import Claims
from .reporter import Reporter


class RallypointCallback(TrainerCallback):
    """Reports the steps of a Trainer, and has it save when the job is asked to.

    A directive has all workers save a checkpoint after the same step, whatever the Trainer's
    save_strategy. While it saves or evaluates, the job is not said to hang.

    The Trainer's output_dir is fenced (rallypoint.fence): if another job has written a checkpoint
    there since the Trainer was made, the next one is refused by a FencedError in all workers.
    So make the Trainer before you choose the checkpoint to resume from. Put this callback behind
    others that ask for checkpoints: what they ask for is then refused before it is written.

        Trainer(model, arguments, callbacks=[RallypointCallback()])

    Args:
        within: seconds that an evaluation or a checkpoint may take.
        fence: True; False not to fence; or what rallypoint.fence(output_dir, into=True) returned
            before the checkpoint to resume from was chosen.

    Raises:
        ValueError: within is not above 0.
    """

    def __init__(self, within: float = 600, fence: Fence | bool = True) -> None:
        self._reporter = Reporter(within)
        self._claims = Claims(fence)
        self._trains = False

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Opens the fence."""
        self._claims.open(args.output_dir, args.process_index == 0)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Opens the fence if this callback was added to the Trainer later."""
        self._trains = True
        self.on_init_end(args, state, control)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Reports the step, in which all workers took part: they have saved the last one."""
        self._claims.end()
        control.should_save |= self._reporter.step(state.global_step)
        return self.on_epoch_end(args, state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Announces what follows, and claims the folder for a checkpoint."""
        if control.should_save or control.should_evaluate:
            self._reporter.away()
        if control.should_save:
            self._claims.begin()
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
        if self._trains and args.save_strategy == "best":
            self._claims.begin()  # the Trainer saves next if this is the best one

    def on_predict(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Ends what was announced, unless a checkpoint follows."""
        if not control.should_save:
            self._reporter.back()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Confirms that the worker has saved."""
        self._claims.begin()  # nothing, unless the save was asked for after on_step_end
        self._reporter.back()
        self._reporter.confirm(state.global_step)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Ends what was announced."""
        self._trains = False
        self._claims.end()
        self._reporter.back()
