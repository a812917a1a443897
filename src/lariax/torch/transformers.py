"""Multipliers in Hugging Face's Trainer."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from lariax.torch._multipliers import Multipliers

Rows = Callable[[Any, Any], tuple[Tensor, Mapping[str, Any]]]


class MultipliersCallback(TrainerCallback, ExportableState):
    """Keeps multipliers in the trainer's checkpoints, and goes on with them when a run is resumed.

    Where `multipliers.steps` is not given, it is the number of batches that the trainer will see.

    Arguments:
        multipliers: those that `compute_loss` calls `lagrangian` of.
    """

    def __init__(self, multipliers: Multipliers) -> None:
        self.multipliers = multipliers

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.multipliers.steps is None:
            self.multipliers.steps = state.max_steps * args.gradient_accumulation_steps
        saved = (state.stateful_callbacks or {}).get(type(self).__name__)
        if saved and state.global_step > 0:
            self.multipliers.load_state_dict(saved["attributes"]["saved"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_save:
            self.multipliers.observe()  # all processes agree here; one of them writes

    on_epoch_end = on_step_end

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"saved": self.multipliers.state_dict()}}


class ConstrainedTrainer(Trainer):
    """A `transformers.Trainer` whose loss is that of `lt.Multipliers`.

    Logs have their numbers, checkpoints their state. An evaluation weighs with them, and leaves them as they are.

    Arguments:
        multipliers: an `lt.Multipliers`.
        rows: rows(outputs, inputs) -> (losses, {name: values, ...}), one number for each row of the batch.
        args, kwargs: the trainer's own.
    """

    def __init__(self, *args: Any, multipliers: Multipliers, rows: Rows, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.multipliers, self.rows = multipliers, rows
        self.model_accepts_loss_kwargs = False  # a mean over the rows of a batch, of which the trainer takes the mean
        self.add_callback(MultipliersCallback(multipliers))

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        outputs = model(**inputs)
        loss = self.multipliers.lagrangian(*self.rows(outputs, inputs))
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        super().log({**logs, **self.multipliers.observe()} if "loss" in logs else logs, *args, **kwargs)
