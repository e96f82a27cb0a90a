"""Keyed noise: standard normal, independent in every direction, and a function of its keys alone."""

from __future__ import annotations

import random
from statistics import NormalDist

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chi2, kstest
from torch import Tensor

from pyro_mgp._support import keyed_noise
from pyro_mgp._support.keyed_noise import KeyedNoise, further_uniforms

LOWEST, HIGHEST = -(2**63), 2**63 - 1


def keys(*numbers: int, device: torch.device | str = "cpu") -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def mix(z: int) -> int:
    """The finaliser of SplitMix64 in Python's integers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def one_number(seed: int, key: int, imputation: int, *stream: int) -> float:
    """The number that a key stands for, hashed without torch and without vectors."""
    golden, modulus = 0x9E3779B97F4A7C15, 2**64
    state = seed % modulus
    for number in stream:
        state = mix((state + (number + 1) * golden) % modulus)
    path = mix(state ^ mix((imputation + golden) % modulus))
    bits = mix((path + mix(key % modulus ^ state)) % modulus)
    return NormalDist().inv_cdf(((bits >> 11) + 0.5) / 2**53)


def correlations(samples: Tensor) -> NDArray[np.float64]:
    """Correlations between the rows of `samples [variables, n]`, in units of their standard error."""
    r = np.corrcoef(samples.cpu().numpy())
    return r[np.triu_indices(len(r), 1)] * np.sqrt(samples.shape[1])


def assert_uncorrelated(samples: Tensor) -> None:
    """Neither the numbers nor their squares: the largest is no outlier, their sum of squares is right."""
    for z in (correlations(samples), correlations(samples.square())):
        assert np.abs(z).max() < 5.5
        assert 1e-4 < chi2.sf((z**2).sum(), len(z)) < 1 - 1e-4


def test_it_is_the_hash_that_the_docstring_names(device: torch.device) -> None:
    numbers = (0, 1, -1, 42, LOWEST, HIGHEST, -6_148_914_691_236_517_206)
    for seed, stream in [(0, ()), (0, (0,)), (7, (2, 0, 5)), (-3, (1, 1)), (HIGHEST, (0, 10**6))]:
        drawn = KeyedNoise(seed, keys(*numbers, device=device), [0, 1, 19]).normal(*stream)
        expected = [[one_number(seed, key, j, *stream) for key in numbers] for j in (0, 1, 19)]
        np.testing.assert_allclose(drawn.cpu().numpy(), expected, rtol=1e-9, atol=1e-12)


def test_several_streams_at_once_are_each_of_them(device: torch.device) -> None:
    noise = KeyedNoise(2**63 - 1, torch.tensor([5, -7, 2**62], device=device), [0, 19])
    together = noise.normals(3, 4)
    assert together.shape == (2, 3, 4)
    for number in range(4):
        assert torch.equal(together[..., number], noise.normal(3, number))


def test_numbers_of_a_published_seed_never_change(device: torch.device) -> None:
    drawn = KeyedNoise(0, torch.arange(3, device=device), range(2)).normal(2, 0, 1)
    expected = [[-0.6099653847, 0.7778983917, 1.7116162954], [-0.3953421659, -0.2734120871, 0.1774448882]]
    np.testing.assert_allclose(drawn.cpu().numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("first", [0, LOWEST, HIGHEST - 500])
def test_numbers_are_standard_normal(first: int, device: torch.device) -> None:
    drawn = KeyedNoise(1, first + torch.arange(500, device=device), range(200)).normal(0, 3)
    assert drawn.shape == (200, 500)
    assert drawn.dtype == torch.float64
    assert kstest(drawn.cpu().numpy().ravel(), "norm").pvalue > 0.01
    # Each imputation and each row alone: the p-values are uniform.
    for samples in (drawn, drawn.T):
        p_values = [kstest(s, "norm").pvalue for s in samples.cpu().numpy()]
        assert kstest(p_values, "uniform").pvalue > 0.01


def test_neighbouring_rows_and_imputations_are_independent(device: torch.device) -> None:
    drawn = KeyedNoise(0, torch.arange(150, device=device), range(3000)).normal(2, 0, 1)
    assert_uncorrelated(drawn.T)
    drawn = KeyedNoise(0, torch.arange(3000, device=device), range(150)).normal(2, 0, 1)
    assert_uncorrelated(drawn)


def test_neighbouring_streams_are_independent(device: torch.device) -> None:
    rows = KeyedNoise(0, torch.arange(3000, device=device), [0])
    streams = [(a, b) for a in range(8) for b in range(8)] + [(a,) for a in range(8)] + [()]
    assert_uncorrelated(torch.cat([rows.normal(*stream) for stream in streams]))


def test_neighbouring_seeds_are_independent(device: torch.device) -> None:
    rows = torch.arange(3000, device=device)
    assert_uncorrelated(torch.cat([KeyedNoise(seed, rows, [0]).normal(1) for seed in range(-50, 50)]))


def test_rows_and_imputations_do_not_trade_places(device: torch.device) -> None:
    # Imputation 3 of row 5 is not imputation 5 of row 3, and no two of these numbers are equal.
    drawn = KeyedNoise(0, torch.arange(300, device=device), range(300)).normal(0)
    assert drawn.unique().numel() == drawn.numel()
    pairs = torch.stack([drawn.triu(1)[drawn.triu(1) != 0], drawn.T.triu(1)[drawn.T.triu(1) != 0]])
    assert np.abs(correlations(pairs)).max() < 4


def test_a_row_and_an_imputation_have_the_same_numbers_in_any_company(device: torch.device) -> None:
    everyone = keys(5, -7, 2**40, LOWEST, 11, device=device)
    whole = KeyedNoise(3, everyone, range(20)).normal(1, 2)
    assert torch.equal(KeyedNoise(3, everyone, range(5)).normal(1, 2), whole[:5])
    assert torch.equal(KeyedNoise(3, everyone, [17, 4]).normal(1, 2), whole[[17, 4]])
    chosen = torch.tensor([4, 0, 0], device=device)
    assert torch.equal(KeyedNoise(3, everyone, range(20)).normal(1, 2, rows=chosen), whole[:, chosen])
    assert torch.equal(KeyedNoise(3, everyone[chosen], range(20)).normal(1, 2), whole[:, chosen])
    assert KeyedNoise(3, everyone, range(20)).normal(1, 2, rows=chosen[:0]).shape == (20, 0)


def test_every_word_of_the_key_counts(device: torch.device) -> None:
    rows = torch.arange(10, device=device)
    drawn = [
        KeyedNoise(0, rows, [0]).normal(1, 2),
        KeyedNoise(1, rows, [0]).normal(1, 2),
        KeyedNoise(0, rows, [1]).normal(1, 2),
        KeyedNoise(0, rows + 10, [0]).normal(1, 2),
        KeyedNoise(0, rows, [0]).normal(2, 1),
        KeyedNoise(0, rows, [0]).normal(1, 2, 0),
        KeyedNoise(0, rows, [0]).normal(1),
        KeyedNoise(0, rows, [0]).normal(),
    ]
    numbers = torch.cat(drawn).ravel()
    assert numbers.unique().numel() == numbers.numel()


@pytest.mark.parametrize("bits", [0, -1])
def test_the_extreme_hashes_give_finite_numbers(
    bits: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_noise, "_mix", lambda x: torch.full_like(x, bits))
    drawn = KeyedNoise(0, torch.arange(1, device=device), [0]).normal(0)
    assert drawn.isfinite().all()
    assert drawn.abs().item() > 8


def test_no_generator_moves_or_matters() -> None:
    def states() -> list[object]:
        return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # noqa: NPY002

    before = states()
    first = KeyedNoise(0, torch.arange(4), range(2)).normal(1)
    assert states() == before
    torch.manual_seed(99)
    assert torch.equal(KeyedNoise(0, torch.arange(4), range(2)).normal(1), first)


def test_further_uniform_numbers_are_uniform_and_independent(device: torch.device) -> None:
    first = KeyedNoise(0, torch.arange(20_000, device=device), [0]).uniform(0)[0]
    numbers = torch.cat([first[:, None], further_uniforms(first, 4)], dim=1).cpu().numpy()
    assert all(kstest(column, "uniform").pvalue > 0.01 for column in numbers.T)
    correlations = np.corrcoef(np.concatenate([numbers, (numbers - 0.5) ** 2], axis=1), rowvar=False)
    assert np.abs(correlations - np.eye(10)).max() < 5 / np.sqrt(20_000)


def test_further_uniform_numbers_do_not_depend_on_rounding_or_on_how_many_there_are() -> None:
    first = KeyedNoise(0, torch.arange(1000), [0]).uniform(0)
    assert further_uniforms(first, 3).shape == (1, 1000, 3)
    assert torch.equal(further_uniforms(first, 3), further_uniforms(first, 7)[..., :3])
    rounded = (first * 2**40).round() / 2**40
    assert (rounded != first).any()
    assert torch.equal(further_uniforms(rounded, 3), further_uniforms(first, 3))
