"""The task of all examples: a small network, whose mean output is to stay below a bound."""

import torch

import lariax.torch as lt

ROWS, STEPS, BOUND = 16, 48, 0.2


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def data(batches=STEPS):
    x = torch.randn(batches * ROWS, 3, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(x, x[:, 0] + 1)


def loader(batches=STEPS):
    return torch.utils.data.DataLoader(data(batches), batch_size=ROWS)


def rows(out, y):
    out = out.squeeze(1)
    return (out - y) ** 2, {"mean": out}


def multipliers(model, steps=STEPS):
    return lt.Multipliers({"mean": lt.AtMost(BOUND)}, steps=steps, parameters=model)


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def plain(batches=STEPS, model=None):
    """The loop that every framework is compared with."""
    model = model or network()
    adam, own = torch.optim.Adam(model.parameters(), lr=0.02), multipliers(model)
    for x, y in loader(batches):
        loss = own.lagrangian(*rows(model(x), y))
        adam.zero_grad()
        loss.backward()
        adam.step()
    return flat(model), own
