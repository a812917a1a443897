"""accelerate: multipliers with any optimizer, an optimizer of ours in its wrapper, two processes."""

import os
from functools import partial

import pytest
import torch
from common import ROWS, data, flat, loader, multipliers, network, plain, rows

import lariax.torch as lt
from processes import as_torchrun, launch

accelerate = pytest.importorskip("accelerate")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


def prepared():
    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    own = multipliers(model)
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    accelerator.register_for_checkpointing(own)
    return accelerator, own, *accelerator.prepare(model, adam)


def train(accelerator, own, model, adam, batches):
    for x, y in batches:
        loss = own.lagrangian(*rows(model(x), y))
        adam.zero_grad()
        accelerator.backward(loss)
        adam.step()


def test_the_same_steps_as_a_plain_loop_and_resumed(tmp_path):
    batches = list(loader())
    accelerator, own, model, adam = prepared()
    train(accelerator, own, model, adam, batches[:20])
    accelerator.save_state(tmp_path / "saved")
    train(accelerator, own, model, adam, batches[20:])
    weights, alone = plain()
    assert torch.equal(flat(model), weights)
    assert own.state_dict() == alone.state_dict()
    accelerator, again, model, adam = prepared()
    accelerator.load_state(tmp_path / "saved")
    train(accelerator, again, model, adam, batches[20:])
    assert torch.equal(flat(model), weights)
    assert again.state_dict() == own.state_dict()


@pytest.mark.parametrize("method", [lt.TrackedLagrangian, lt.DualPenalty])
def test_an_optimizer_of_ours_in_the_wrapper(method, tmp_path):
    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    model, opt = accelerator.prepare(model, method(model, {"mean": lt.AtMost(0.2)}))
    alone = network()
    other = method(alone, {"mean": lt.AtMost(0.2)})

    def closure(network, batch):
        return rows(network(batch[0]), batch[1])

    for i in range(12):
        batch = data(12)[i * ROWS : (i + 1) * ROWS]
        opt.step(partial(partial(closure, model), batch))
        other.step(partial(closure, alone), batch)
    assert torch.equal(flat(model), flat(alone))
    accelerator.save_state(tmp_path / "saved")
    opt.optimizer.load_state_dict(method(network(), {"mean": lt.AtMost(0.2)}).state_dict())
    accelerator.load_state(tmp_path / "saved")
    assert opt.optimizer.calls == 12


def two(rank, size, folder):
    os.environ |= as_torchrun(rank, size)
    accelerator, own, model, adam = prepared()
    assert accelerator.num_processes == size
    part = [(x[rank::size], y[rank::size]) for x, y in loader()]
    train(accelerator, own, model, adam, part)
    return flat(model), own.state_dict(), own["mean"]


def test_two_processes_agree(tmp_path):
    (one, state, y), (other, text, _) = launch(two, 2, tmp_path)
    assert torch.equal(one, other)
    assert state == text
    assert y > 0
    torch.testing.assert_close(one, plain()[0], rtol=0.3, atol=0.2)  # gradients are measured in parts of batches
