"""Generative adversarial imputation (GAIN; Yoon, Jordon and van der Schaar, ICML 2018), in torch.

A generator imputes the missing cells of a row; a discriminator classifies cells as observed or imputed, with
a hint that reveals nine tenths of the observed ones. With x̂ the filled row, m its observed cells and h the
hint, the losses are

    discriminator   -mean[m log D(x̂, h) + (1 - m) log(1 - D(x̂, h))]
    generator       -mean[(1 - m) log D(x̂, h)] + α mean[m (x - G)²] / mean[m]

As in the authors' program, columns are scaled to [0, 1], both networks have two hidden layers as wide as the
table, and Adam has a learning rate of 0.001.
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
# Upper bound of the uniform noise in missing cells that the generator gets as input.
_NOISE = 0.01


def gain(train: pd.DataFrame, test: pd.DataFrame, seed: int, budget: Budget) -> Imputed:
    """Impute by GAIN with the settings of its paper: batch 128, hint rate 0.9, α = 10.

    Draws would hardly differ because the input noise is small; the method gives point predictions only.
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
        n_columns: Number of columns D.
    """

    def __init__(self, n_columns: int) -> None:
        super().__init__()
        self.generator = _perceptron(n_columns)
        self.discriminator = _perceptron(n_columns)

    def learn(self, table: Tensor, iterations: int) -> None:
        """Train both networks alternately on minibatches of a table `[N, D]` with NaN in missing cells."""
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
        """Return the cross-entropy of the observed cells.

        Args:
            values: Rows with noise in missing cells, `[B, D]`.
            observed: Bool, `[B, D]`.
            hint: Observed cells that are revealed, `[B, D]`.
        """
        with torch.no_grad():
            filled = torch.where(observed, values, self.generate(values, observed))
        logits = self.discriminator(torch.cat([filled, hint], dim=1))
        return nn.functional.binary_cross_entropy_with_logits(logits, observed.to(logits))

    def generator_loss(self, values: Tensor, observed: Tensor, hint: Tensor) -> Tensor:
        """Return the adversarial loss of missing cells plus the weighted squared error of observed cells.

        Args:
            values: Rows with noise in missing cells, `[B, D]`.
            observed: Bool, `[B, D]`.
            hint: Observed cells that are revealed, `[B, D]`.
        """
        generated = self.generate(values, observed)
        logits = self.discriminator(torch.cat([torch.where(observed, values, generated), hint], dim=1))
        adversarial = -(nn.functional.logsigmoid(logits) * ~observed).mean()
        squared = ((values - generated).square() * observed).sum() / observed.sum()
        return adversarial + _ALPHA * squared

    def generate(self, values: Tensor, observed: Tensor) -> Tensor:
        """Return the output of the generator in [0, 1], `[B, D]`."""
        return torch.sigmoid(self.generator(torch.cat([values, observed], dim=1)))

    @torch.no_grad()
    def complete(self, table: Tensor) -> Tensor:
        """Impute the missing cells, NaN, of a table `[n, D]`."""
        observed = ~table.isnan()
        return torch.where(observed, table, self.generate(_with_noise(table), observed))


def _with_noise(table: Tensor) -> Tensor:
    """Return the table with small uniform noise in its missing cells."""
    return torch.where(table.isnan(), _NOISE * torch.rand_like(table), table)


def _perceptron(n_columns: int) -> nn.Sequential:
    """Return a network with 2D inputs, two hidden layers of D units, and D outputs."""
    layers: list[nn.Module] = []
    for n_inputs in (2 * n_columns, n_columns, n_columns):
        linear = nn.Linear(n_inputs, n_columns)
        nn.init.xavier_normal_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
