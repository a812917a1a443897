"""A policy gradient with a budget: go fast, spend at most one unit of energy. `python examples/policy.py`

A cart starts at rest; a policy pushes it. The reward is the mean speed, the cost the mean square of the speed, and the
mean cost is to be at most 1. Since the square of a mean is at most the mean of squares, no policy that keeps to the
budget has a reward above 1.

`--episodes 4096 --iterations 2000` takes a minute on a GPU (H200) and ends at a speed of 0.981 and an energy of 0.998.
The defaults are few for a plain policy gradient: energy goes from 2.8 to 1.2, not quite to 1.
"""

import argparse

import torch

import lariax.torch as lt

LENGTH, KEPT, PUSH = 20, 0.8, 0.4  # steps; what friction leaves of the speed, and what a push adds: 2 is the most


def rollout(policy, episodes, device):
    """Rewards, costs and the logarithms of the probabilities of the actions, one for each episode."""
    speed = torch.zeros(episodes, device=device)
    reward, cost, logarithm = torch.zeros_like(speed), torch.zeros_like(speed), torch.zeros_like(speed)
    for step in range(LENGTH):
        seen = torch.stack([speed, torch.full_like(speed, step / LENGTH)], dim=1)
        choice = torch.distributions.Normal(policy(seen).squeeze(1), 0.3)
        action = choice.sample()
        logarithm = logarithm + choice.log_prob(action)
        speed = KEPT * speed + PUSH * torch.tanh(action)
        reward, cost = reward + speed / LENGTH, cost + speed**2 / LENGTH
    return reward, cost, logarithm


def train(iterations=300, episodes=256, budget=1.0, device="cpu", seed=0):
    """The last mean reward, mean cost and multiplier."""
    torch.manual_seed(seed)
    policy = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(device)
    adam = torch.optim.Adam(policy.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, iterations)
    multipliers = lt.Multipliers({"cost": lt.AtMost(budget)}, steps=iterations, parameters=policy)
    for _ in range(iterations):
        reward, cost, logarithm = rollout(policy, episodes, device)
        loss = -(reward - reward.mean()) * logarithm
        values = lt.Proxy(cost, (cost - cost.mean()) * logarithm)
        adam.zero_grad()
        multipliers.lagrangian(loss, {"cost": values}).backward()
        adam.step()
        schedule.step()
    with torch.no_grad():
        reward, cost, _ = rollout(policy, 16 * episodes, device)
    return float(reward.mean()), float(cost.mean()), float(multipliers["cost"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--episodes", type=int, default=256)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name, budget in (("no budget", 1e6), ("budget 1", 1.0)):
        reward, cost, multiplier = train(options.iterations, options.episodes, budget, device)
        print(f"{name:10} mean speed {reward:6.3f}   mean energy {cost:7.3f}   multiplier {multiplier:.3f}")


if __name__ == "__main__":
    main()
