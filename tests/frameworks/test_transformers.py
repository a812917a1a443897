"""Hugging Face's Trainer, with a model of theirs."""

import json
import os

import pytest
import torch
import torch.distributed as distributed

import lariax.torch as lt
from processes import as_torchrun, launch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")  # which the Trainer needs
from lariax.torch.transformers import ConstrainedTrainer  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
LENGTH, WORDS, BATCHES = 8, 16, 24


class Sentences(torch.utils.data.Dataset):
    """Half of them count upwards, half repeat: the loss of the second kind is to stay below a bound."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        start = torch.randint(0, WORDS, (1,), generator=torch.Generator().manual_seed(i))
        ids = (start + (torch.arange(LENGTH) if i % 2 else 0)) % WORDS + torch.zeros(LENGTH, dtype=torch.long)
        return {"input_ids": ids, "labels": ids, "is_old": torch.tensor(float(i % 2 == 0))}


class Model(transformers.GPT2LMHeadModel):
    """Takes the columns of the data that only the constraints need."""

    def forward(self, input_ids, labels=None, is_old=None, **kwargs):
        return super().forward(input_ids=input_ids)


def model():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2,
        bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return Model(config)


def rows(outputs, inputs):
    tokens = torch.nn.functional.cross_entropy(
        outputs.logits[:, :-1].transpose(1, 2), inputs["labels"][:, 1:], reduction="none"
    )
    losses = tokens.mean(dim=1)
    return losses * (1 - inputs["is_old"]) * 2, {"old": 2 * losses * inputs["is_old"]}


def trainer(folder, **options):
    network = model()
    args = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=8, num_train_epochs=1, learning_rate=0.01,
        logging_steps=4, report_to="none", use_cpu=True, disable_tqdm=True, seed=3, **{"save_steps": 8} | options,
    )  # fmt: skip
    multipliers = lt.Multipliers({"old": lt.AtMost(0.5)}, parameters=network)
    data = Sentences(8 * BATCHES)
    return ConstrainedTrainer(
        model=network, args=args, train_dataset=data, eval_dataset=Sentences(16), multipliers=multipliers, rows=rows
    )


def test_trained_logged_evaluated_and_resumed(tmp_path):
    whole = trainer(tmp_path, eval_strategy="steps", eval_steps=8)
    whole.train()
    assert whole.multipliers.steps == whole.multipliers.core.calls == BATCHES  # evaluations are no calls
    logged = [line for line in whole.state.log_history if "old/multiplier" in line]
    assert len(logged) == BATCHES // 4
    assert all(isinstance(value, int | float) for line in logged for value in line.values())
    saved = json.loads((tmp_path / "checkpoint-16/trainer_state.json").read_text())
    assert "MultipliersCallback" in saved["stateful_callbacks"]
    again = trainer(tmp_path)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-16"))
    assert whole.multipliers.state_dict() == again.multipliers.state_dict()
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def several(rank, size, folder):
    """A whole run, with checkpoints, logs and evaluations; then its last third again, from a checkpoint."""
    os.environ |= as_torchrun(rank, size)
    whole = trainer(folder, eval_strategy="steps", eval_steps=4, ddp_backend="gloo", save_steps=4)
    assert whole.args.world_size == size
    whole.train()
    assert whole.multipliers.steps == whole.multipliers.core.calls == whole.state.global_step == BATCHES // size
    assert any("old/multiplier" in line for line in whole.state.log_history)
    again = trainer(folder, ddp_backend="gloo", save_steps=4)
    again.train(resume_from_checkpoint=f"{folder}/checkpoint-{BATCHES // size - 4}")
    distributed.barrier()
    own = whole.multipliers.state_dict(), whole.multipliers["old"], again.multipliers.state_dict()
    return *own, *(torch.cat([p.detach().reshape(-1) for p in each.model.parameters()]) for each in (whole, again))


def test_two_processes_agree_and_resume(tmp_path):
    found = launch(several, 2, tmp_path)
    for state, y, text, weights, again in found:
        assert state == text == found[0][0]
        assert y > 0
        assert torch.equal(weights, again)
        assert torch.equal(weights, found[0][3])


def test_accumulation_takes_the_mean_of_batches(tmp_path):
    """Two batches of four rows are a step of eight."""
    whole = trainer(tmp_path / "a", gradient_accumulation_steps=2)
    whole.train()
    assert whole.multipliers.steps == whole.multipliers.core.calls == BATCHES
    assert whole.state.global_step == BATCHES // 2


def test_an_optimizer_of_ours_is_refused_with_what_to_do(tmp_path):
    network = model()
    args = transformers.TrainingArguments(output_dir=str(tmp_path), report_to="none", use_cpu=True, max_steps=3)
    opt = lt.TrackedLagrangian(network, {"old": lt.AtMost(0.5)})
    schedule = torch.optim.lr_scheduler.ConstantLR(opt, 1.0)
    plain = transformers.Trainer(network, args, train_dataset=Sentences(16), optimizers=(opt, schedule),
                                 compute_loss_func=lambda out, labels, **_: out.logits.mean())  # fmt: skip
    with pytest.raises(TypeError, match=r"lt\.Multipliers with any optimizer"):
        plain.train()
