"""Multipliers in Lightning: a callback that logs them and keeps them in checkpoints."""

from typing import Any

from lightning.pytorch import Callback

from lariax.torch._multipliers import Multipliers


class MultipliersCallback(Callback):
    """Logs multipliers, values and their errors with the trainer's loggers, and saves them in its checkpoints.

    Where `multipliers.steps` is not given, it is the number of batches that the trainer will see.

    Arguments:
        multipliers: those that `training_step` calls `lagrangian` of.
    """

    def __init__(self, multipliers: Multipliers) -> None:
        self.multipliers = multipliers

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self.multipliers.steps is None:
            steps = trainer.estimated_stepping_batches * trainer.accumulate_grad_batches
            self.multipliers.steps = int(steps) if steps < float("inf") else None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (batch_idx + 1) % trainer.log_every_n_steps == 0:
            numbers = self.multipliers.observe()  # by all processes, which agree on them
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        return self.multipliers.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.multipliers.load_state_dict(state_dict)
