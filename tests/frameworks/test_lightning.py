"""Lightning: automatic optimisation with multipliers, and manual optimisation with an optimizer of ours."""

import os
from functools import partial

import pytest
import torch
import torch.distributed as distributed
from common import ROWS, STEPS, data, flat, loader, multipliers, network, plain, rows

import lariax.torch as lt
from processes import as_torchrun, launch

lightning = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy  # noqa: E402

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


def several(rank, size, folder):
    """Two epochs, with a checkpoint after each; then the second one again, from the first's."""
    os.environ |= as_torchrun(rank, size)

    def trained(resume=None):
        module = Module()
        trainer = lightning.Trainer(
            max_epochs=2, strategy=DDPStrategy(process_group_backend="gloo"), devices=size,
            logger=CSVLogger(folder, name=f"logged{resume is not None}"), default_root_dir=folder,
            callbacks=[MultipliersCallback(module.multipliers), ModelCheckpoint(f"{folder}/saved", save_top_k=-1)],
            **QUIET,
        )  # fmt: skip
        trainer.fit(module, loader(STEPS // 2 * size), ckpt_path=resume, weights_only=True)
        return flat(module.network), module.multipliers.state_dict(), module.multipliers

    weights, state, multipliers = trained()
    assert multipliers.steps == multipliers.core.calls == STEPS
    again, text, others = trained(f"{folder}/saved/epoch=0-step={STEPS // 2}.ckpt")
    distributed.barrier()
    return (weights, state, multipliers["mean"]), (again, text, others["mean"])


@pytest.mark.parametrize("size", [2, 4])
def test_several_processes_agree_log_and_resume(size, tmp_path):
    """To the same bits; from four processes on, Lightning's own sums differ in the last bit after a resumption."""
    found = launch(several, size, tmp_path)
    for (weights, state, y), (again, text, z) in found:
        assert torch.equal(weights, found[0][0][0])
        assert torch.equal(again, found[0][1][0])
        assert state == found[0][0][1]
        assert text == found[0][1][1]
        assert y > 0
        if size == 2:
            assert torch.equal(weights, again)
            assert state == text
        torch.testing.assert_close(weights, again, rtol=0, atol=1e-5)
        assert z == pytest.approx(y, rel=1e-4)
    logged = (tmp_path / "loggedFalse/version_0/metrics.csv").read_text()
    assert "mean/multiplier" in logged.splitlines()[0]
    assert len(logged.splitlines()) == 1 + STEPS // 8


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
