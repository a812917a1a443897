"""FSDP2, with uneven shards and activation checkpointing, and `torch.distributed.checkpoint`."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import lariax.torch as lt
from processes import launch

ROWS, STEPS, HALF = 16, 40, 20
CONSTRAINTS = {"mean": lt.AtMost(0.2)}


class Network(torch.nn.Module):
    """Layers of 7 and 5 rows: four processes have unequal parts of them."""

    def __init__(self, is_checkpointed=False):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 7), torch.nn.Linear(7, 5), torch.nn.Linear(5, 1)])
        self.double()
        self.is_checkpointed = is_checkpointed

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.tanh(checkpoint(layer, x, use_reentrant=False) if self.is_checkpointed else layer(x))
        return self.layers[-1](x)


def sharded(size):
    model = Network(is_checkpointed=True)
    mesh = init_device_mesh("cpu", (size,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(model, adam, multipliers, part, first=0, last=STEPS):
    for i in range(first, last):
        x = part(torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(i), dtype=torch.float64))
        out = model(x).squeeze(1)
        loss = multipliers.lagrangian((out - x[:, 0] - 1) ** 2, {"mean": out}, shared=out)
        adam.zero_grad()
        loss.backward()
        adam.step()


def parts(model):
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    return model, adam, lt.Multipliers(CONSTRAINTS, steps=STEPS)


def flat(model):
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().reshape(-1) for p in whole])


def alone():
    model, adam, multipliers = parts(Network())
    train(model, adam, multipliers, lambda rows: rows)
    return flat(model), multipliers["mean"]


def whole_run(rank, size, folder):
    """All steps, with a checkpoint on the way."""
    model, adam, multipliers = parts(sharded(size))
    own = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    train(model, adam, multipliers, lambda rows: rows[own], last=HALF)
    weights, moments = get_state_dict(model, adam)
    dcp.save({"model": weights, "adam": moments, "multipliers": multipliers}, checkpoint_id=f"{folder}/saved")
    train(model, adam, multipliers, lambda rows: rows[own], first=HALF)
    return flat(model), multipliers["mean"], multipliers.state_dict()


def second_half(rank, size, folder):
    model, adam, multipliers = parts(sharded(size))
    weights, moments = get_state_dict(model, adam)
    dcp.load({"model": weights, "adam": moments, "multipliers": multipliers}, checkpoint_id=f"{folder}/saved")
    set_state_dict(model, adam, model_state_dict=weights, optim_state_dict=moments)
    own = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    train(model, adam, multipliers, lambda rows: rows[own], first=HALF)
    return flat(model), multipliers["mean"], multipliers.state_dict()


def closures(rank, size, folder):
    """The optimizers that find their own steps refuse sharded parameters, whenever they were sharded."""
    found = []
    early = Network()
    opts = [(early, lt.TrackedLagrangian(early, CONSTRAINTS))]
    for layer in early.layers:
        fully_shard(layer, mesh=init_device_mesh("cpu", (size,)))
    for group in opts[0][1].param_groups:  # as accelerate does
        group["params"] = list(early.parameters())
    for _, opt in opts:
        try:
            opt.step(lambda x: (early(x), {"mean": early(x)}), torch.zeros(4, 3).double())
        except NotImplementedError as reason:
            found.append(str(reason))
    try:
        lt.DualPenalty(sharded(size), CONSTRAINTS)
    except NotImplementedError as reason:
        found.append(str(reason))
    return found


def test_four_processes_take_the_steps_of_one(tmp_path):
    found = launch(whole_run, 4, tmp_path)
    weights, multiplier = alone()
    assert multiplier > 0.1
    for own, y, state in found:
        torch.testing.assert_close(own, weights, rtol=0, atol=1e-12)
        assert y == pytest.approx(multiplier, rel=1e-12)
        assert state == found[0][2]


@pytest.mark.long
def test_a_checkpoint_goes_on_on_another_number_of_processes(tmp_path):
    saved = launch(whole_run, 4, tmp_path)
    same, fewer = launch(second_half, 4, tmp_path), launch(second_half, 2, tmp_path)
    for (weights, y, state), (other, z, text) in zip(saved, same, strict=True):
        assert torch.equal(weights, other)
        assert y == z
        assert state == text
    for weights, y, _ in fewer:
        torch.testing.assert_close(weights, saved[0][0], rtol=0, atol=1e-12)
        assert y == pytest.approx(saved[0][1], rel=1e-12)


@pytest.mark.long
def test_closure_optimizers_refuse_sharded_parameters(tmp_path):
    for found in launch(closures, 2, tmp_path):
        assert len(found) == 2
        assert all("lt.Multipliers" in words for words in found)


@pytest.mark.long
def test_sharded_parameters_are_named_where_gradients_cannot_be_measured(tmp_path):
    assert launch(without_shared, 2, tmp_path) == [True, True]


def without_shared(rank, size, folder):
    model = sharded(size)
    multipliers = lt.Multipliers(CONSTRAINTS, steps=STEPS, parameters=model)
    out = model(torch.zeros(4, 3).double()).squeeze(1)
    with pytest.warns(RuntimeWarning, match="the parameters are sharded"):
        multipliers.lagrangian(out**2, {"mean": out}).backward()
    return True
