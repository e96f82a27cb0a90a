"""Imputation in partitions equals imputation of the whole table."""

from __future__ import annotations

import itertools
import pickle
import threading

import numpy as np
import pandas as pd
import pytest
from every_kind import SPECS, table_of_every_kind
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.contrib.gp import kernels

from pyro_mgp import Imputations, MGPImputer
from pyro_mgp.data.encoded_table import ranks_among_equals
from pyro_mgp.scaling.partitions import FittedState, identify, impute_partition, merged, rank


@pytest.fixture(scope="module")
def imputer() -> MGPImputer:
    frame = table_of_every_kind(320)
    return MGPImputer(specs=SPECS, n_inducing=20, max_steps=2, random_state=0, progress=False).fit(frame)


@pytest.fixture(scope="module")
def new() -> pd.DataFrame:
    """Return rows of which some are equal, with labels in random order."""
    frame = table_of_every_kind(90, seed=1)
    frame = pd.concat([frame, frame[:20], frame[10:25]])
    return frame.set_axis(np.random.default_rng(0).permutation(len(frame)))


@pytest.fixture(scope="module")
def whole(imputer: MGPImputer, new: pd.DataFrame) -> Imputations:
    return imputer.impute(new, m=3)


def in_partitions(
    state: FittedState | MGPImputer, frame: pd.DataFrame, ends: list[int]
) -> list[pd.DataFrame]:
    """Impute a table in partitions, and return the completed tables."""
    cuts = [0, *sorted(ends), len(frame)]
    parts = [frame[start:end] for start, end in itertools.pairwise(cuts)]
    fitted = state if isinstance(state, FittedState) else FittedState(state)
    hashes = [identify(fitted, part, 2) for part in parts]
    ranked = [rank([of_part[bucket] for of_part in hashes]) for bucket in range(2)]
    identities = [merged(of_part) for of_part in zip(*ranked, strict=True)]
    draws = [impute_partition(state, p, 3, row_ids=i) for p, i in zip(parts, identities, strict=True)]
    return [pd.concat([each[j] for each in draws if len(each[j])]) for j in range(3)]


@pytest.mark.slow
def test_any_partition_of_the_rows_in_any_order(
    imputer: MGPImputer, new: pd.DataFrame, whole: Imputations
) -> None:
    generator = np.random.default_rng(1)
    for n_cuts in (0, 5):
        shuffled = new.sample(frac=1, random_state=n_cuts)
        ends = generator.integers(0, len(new), n_cuts).tolist()
        for found, expected in zip(in_partitions(imputer, shuffled, ends), whole, strict=True):
            pd.testing.assert_frame_equal(found, expected.loc[found.index], check_exact=True)


def test_a_pickled_state_does_not_contain_the_fitted_table(
    imputer: MGPImputer, new: pd.DataFrame, whole: Imputations
) -> None:
    state = pickle.loads(pickle.dumps(FittedState(imputer)))
    assert state.imputer().model_.own is None
    assert state.imputer() is state.imputer()
    for found, expected in zip(in_partitions(state, new, [40]), whole, strict=True):
        pd.testing.assert_frame_equal(found, expected, check_exact=True)


def test_a_user_kernel_is_pickled() -> None:
    frame = pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20.0) ** 2}).mask(np.eye(20, 2) > 0)
    imputer = MGPImputer(kernel=kernels.RBF, max_steps=2, random_state=0, progress=False).fit(frame)
    assert impute_partition(FittedState(imputer), frame, 2) == imputer.impute(frame, m=2)


def test_indices_of_imputations_may_be_chosen(
    imputer: MGPImputer, new: pd.DataFrame, whole: Imputations
) -> None:
    draws = impute_partition(imputer, new, [2, 0])
    np.testing.assert_allclose(draws.values["long_tailed"], whole.values["long_tailed"][[2, 0]], rtol=1e-9)


def test_an_empty_partition_stays_empty(imputer: MGPImputer, new: pd.DataFrame) -> None:
    draws = impute_partition(FittedState(imputer), new[:0], 2)
    assert [table.equals(new[:0]) for table in draws] == [True, True]
    assert [len(bucket[0]) for bucket in identify(FittedState(imputer), new[:0], 3)] == [0, 0, 0]


def test_threads_give_equal_draws(imputer: MGPImputer, new: pd.DataFrame) -> None:
    state, parts = FittedState(imputer), [new[:20], new[20:40], new[40:60]]
    alone = [impute_partition(state, part, 2) for part in parts]
    found: dict[int, Imputations] = {}

    def work(i: int) -> None:
        found[i] = impute_partition(state, parts[i], 2)

    threads = [threading.Thread(target=work, args=[i]) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(3)] == alone


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=30),
    ends=st.lists(st.integers(0, 30), max_size=5),
    n_buckets=st.integers(1, 4),
)
def test_ranks_are_those_of_the_whole_table(
    rows: list[tuple[int, int]], ends: list[int], n_buckets: int
) -> None:
    content, labels = np.array(rows, dtype=np.uint64).reshape(-1, 2).T
    cuts = [0, *sorted(min(end, len(rows)) for end in ends), len(rows)]
    slices = [slice(start, end) for start, end in itertools.pairwise(cuts)]
    ranked = []
    for bucket in range(n_buckets):
        places = [np.flatnonzero(content[here] % np.uint64(n_buckets) == bucket) for here in slices]
        pairs = zip(places, slices, strict=True)
        ranked.append(rank([(at, content[here][at], labels[here][at]) for at, here in pairs]))
    parts = [merged(of_part) for of_part in zip(*ranked, strict=True)]
    found = [np.zeros(here.stop - here.start, dtype=np.uint64) for here in slices]
    for own, part in zip(found, parts, strict=True):
        own[part.positions] = part.ranks
    np.testing.assert_array_equal(np.concatenate(found), ranks_among_equals(content, labels))


@pytest.mark.parametrize(("m", "sentence"), [([], "got"), ([1, 1], "different"), ([-1], "at least 0")])
def test_invalid_indices_of_imputations_are_refused(
    imputer: MGPImputer, new: pd.DataFrame, m: list[int], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        imputer.impute(new, m=m)
