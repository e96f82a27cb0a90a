"""Generative adversarial imputation (GAIN; Yoon, Jordon and van der Schaar, ICML 2018), in torch.

A generator fills the holes of a row; a discriminator is to tell which cells are filled, with a hint that
names nine tenths of the observed ones. With x̂ the filled row, m its observed cells and h the hint,

    discriminator   -mean[m log D(x̂, h) + (1 - m) log(1 - D(x̂, h))]
    generator       -mean[(1 - m) log D(x̂, h)] + α mean[m (x - G)²] / mean[m]

as in the authors' program: columns scaled to [0, 1], two hidden layers as wide as the table, Adam 0.001.
"""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor, nn

from benchmarks.paper.imputed import Imputed
from benchmarks.paper.profiles import Budget
from pyro_mgp.inference.adam import Adam

_BATCH_SIZE = 128
_HINT_RATE = 0.9
_ALPHA = 10.0
_LEARNING_RATE = 1e-3
# Largest noise that stands in the holes before the generator fills them.
_NOISE = 0.01


def gain(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """GAIN with the settings of its paper: batch 128, hint rate 0.9, α = 10.

    Its noise is too small to speak of a distribution, so it gives points only.
    """
    low = train.min()
    width = (train.max() - low).where(lambda w: w > 0, 1.0)
    device = torch.device(budget.device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        rows, new_rows = (
            torch.as_tensor(((table - low) / width).to_numpy(copy=True), dtype=torch.float32, device=device)
            for table in (train, test)
        )
        networks = Networks(rows.shape[1]).to(device)
        networks.learn(rows, budget.gain_iterations)
        completed = networks.complete(new_rows).cpu().double().numpy()
    scaled = pd.DataFrame(completed, index=test.index, columns=test.columns)
    return Imputed.from_table(scaled * width + low, test)


class Networks(nn.Module):
    """Generator and discriminator for tables of D columns in [0, 1].

    Args:
        n_columns: D.
    """

    def __init__(self, n_columns: int) -> None:
        super().__init__()
        self.generator = _perceptron(n_columns)
        self.discriminator = _perceptron(n_columns)

    def learn(self, table: Tensor, iterations: int) -> None:
        """Train both in turn on minibatches of a table `[N, D]` with NaN in its holes."""
        adams = [Adam(network.parameters()) for network in (self.discriminator, self.generator)]
        for _ in range(iterations):
            rows = torch.randint(len(table), (min(_BATCH_SIZE, len(table)),), device=table.device)
            observed = ~table[rows].isnan()
            values = _with_noise(table[rows])
            hint = observed * (torch.rand_like(values) < _HINT_RATE)
            for adam, loss in zip(adams, (self.discriminator_loss, self.generator_loss), strict=True):
                self.zero_grad()
                loss(values, observed, hint).backward()
                adam.step(_LEARNING_RATE)
        for adam in adams:
            adam.release()

    def discriminator_loss(self, values: Tensor, observed: Tensor, hint: Tensor) -> Tensor:
        """Cross-entropy of what is observed; all arguments `[B, D]`, noise in the holes of `values`."""
        with torch.no_grad():
            filled = torch.where(observed, values, self.generate(values, observed))
        logits = self.discriminator(torch.cat([filled, hint], dim=1))
        return nn.functional.binary_cross_entropy_with_logits(logits, observed.to(logits))

    def generator_loss(self, values: Tensor, observed: Tensor, hint: Tensor) -> Tensor:
        """Being found out in the holes, and being wrong elsewhere; all arguments `[B, D]`."""
        generated = self.generate(values, observed)
        logits = self.discriminator(torch.cat([torch.where(observed, values, generated), hint], dim=1))
        found_out = -(nn.functional.logsigmoid(logits) * ~observed).mean()
        squared = ((values - generated).square() * observed).sum() / observed.sum()
        return found_out + _ALPHA * squared

    def generate(self, values: Tensor, observed: Tensor) -> Tensor:
        """The generator's table in [0, 1], `[B, D]`."""
        return torch.sigmoid(self.generator(torch.cat([values, observed], dim=1)))

    @torch.no_grad()
    def complete(self, table: Tensor) -> Tensor:
        """A table `[n, D]` with its holes, NaN, filled."""
        observed = ~table.isnan()
        return torch.where(observed, table, self.generate(_with_noise(table), observed))


def _with_noise(table: Tensor) -> Tensor:
    """The table with small uniform noise in its holes."""
    return torch.where(table.isnan(), _NOISE * torch.rand_like(table), table)


def _perceptron(n_columns: int) -> nn.Sequential:
    """Two hidden layers of D units, from two tables of D columns to one."""
    layers: list[nn.Module] = []
    for n_inputs in (2 * n_columns, n_columns, n_columns):
        linear = nn.Linear(n_inputs, n_columns)
        nn.init.xavier_normal_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
