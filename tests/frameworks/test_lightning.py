"""Lightning: automatic optimisation with multipliers, and manual optimisation with an optimizer of ours."""

from functools import partial

import pytest
import torch
from common import ROWS, STEPS, data, flat, loader, multipliers, network, plain, rows

import lariax.torch as lt

lightning = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from lariax.torch.lightning import MultipliersCallback  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "log_every_n_steps": 8}


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()
        self.multipliers = multipliers(self.network, steps=None)

    def training_step(self, batch, _):
        x, y = batch
        return self.multipliers.lagrangian(*rows(self.network(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


def fitted(tmp_path, epochs, resume=None, **options):
    module = Module()
    logger = CSVLogger(tmp_path, name=f"{epochs}{resume is not None}")
    trainer = lightning.Trainer(
        max_epochs=epochs, callbacks=[MultipliersCallback(module.multipliers)], logger=logger, **QUIET, **options
    )
    module.multipliers.steps = STEPS
    trainer.fit(module, loader(STEPS // 2), ckpt_path=resume, weights_only=True)
    return module, trainer


def test_the_same_steps_as_a_plain_loop_logged_and_resumed(tmp_path):
    whole, trainer = fitted(tmp_path, 2)
    trainer.save_checkpoint(tmp_path / "whole.ckpt")
    trainer.logger.save()
    logged = (tmp_path / "2False/version_0/metrics.csv").read_text()
    assert "mean/multiplier" in logged.splitlines()[0]
    assert len(logged.splitlines()) == 1 + STEPS // 8
    half, trainer = fitted(tmp_path, 1)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    resumed, _ = fitted(tmp_path, 2, resume=tmp_path / "half.ckpt")
    assert torch.equal(flat(whole.network), flat(resumed.network))
    assert whole.multipliers.state_dict() == resumed.multipliers.state_dict()
    assert whole.multipliers["mean"] > 0
    alone, own = plain(STEPS // 2)
    assert torch.equal(flat(half.network), alone)
    assert half.multipliers["mean"] == own["mean"]


def test_steps_come_from_the_trainer(tmp_path):
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=1, callbacks=[MultipliersCallback(module.multipliers)], logger=False, accumulate_grad_batches=2,
        enable_checkpointing=False, **QUIET,
    )  # fmt: skip
    trainer.fit(module, loader(8))
    assert module.multipliers.steps == 8
    assert trainer.global_step == 4


class Manual(lightning.LightningModule):
    def __init__(self, method):
        super().__init__()
        self.automatic_optimization = False
        self.network, self.method = network(), method

    def training_step(self, batch, _):
        self.optimizers().step(partial(self.closure, batch))

    def closure(self, batch):
        x, y = batch
        return rows(self.network(x), y)

    def configure_optimizers(self):
        return self.method(self.network, {"mean": lt.AtMost(0.2)})


@pytest.mark.parametrize("method", [lt.TrackedLagrangian, lt.DualPenalty])
def test_manual_optimisation_takes_our_optimizers(method, tmp_path):
    module = Manual(method)
    trainer = lightning.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, **QUIET)
    trainer.fit(module, loader(12))
    assert trainer.global_step == 12
    alone = network()
    opt = method(alone, {"mean": lt.AtMost(0.2)})
    for i in range(12):
        opt.step(lambda batch: rows(alone(batch[0]), batch[1]), data(12)[i * ROWS : (i + 1) * ROWS])
    assert torch.equal(flat(module.network), flat(alone))
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=True)["optimizer_states"][0]
    other = method(network(), {"mean": lt.AtMost(0.2)})
    other.load_state_dict(saved)
    assert other.calls == 12
