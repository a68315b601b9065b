"""The order of samples: a permutation that is computed, not stored."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.engine.data.order import dropout_seed, ids_at, keys_of, permute
from phalanx.recipe.keys import make_key

BILLION = 10**9


def whole(size, key):
    return permute(np.arange(size), size, key)


@pytest.mark.parametrize("key", [0, -1, make_key(5)])
def test_every_small_size_is_a_bijection(key):
    for size in range(1, 301):
        assert np.array_equal(np.sort(whole(size, key)), np.arange(size)), size


@pytest.mark.parametrize("size", [29_500, 65_536, 1_000_003])
def test_large_sizes_are_a_bijection(size):
    seen = np.zeros(size, dtype=bool)
    seen[whole(size, make_key(size))] = True
    assert seen.all()


@given(st.integers(1, 5000), st.integers(0, 2**63 - 1), st.integers(0, 9), st.data())
def test_any_part_equals_the_slice_of_the_whole(size, seed, epoch, data):
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    order = ids_at(seed, epoch, 0, size, size)
    assert np.array_equal(ids_at(seed, epoch, start, stop, size), order[start:stop])


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(ids_at(seed, epoch, 0, 50, 50)) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


@pytest.mark.parametrize("size", [2, 3, 5, 7, 12, 23])
def test_every_id_is_as_likely_at_every_position(size):
    draws = 1200
    counts = np.zeros((size, size))
    for seed in range(draws):
        counts[np.arange(size), ids_at(seed, 0, 0, size, size)] += 1
    expected = draws / size
    # Degrees of freedom of a table with fixed margins; mean df, variance 2 df: 6 deviations.
    df = (size - 1) ** 2
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < df + 6 * (2 * df) ** 0.5 + 18


def test_all_orders_of_four_samples_happen():
    seen = {}
    for seed in range(2400):
        order = tuple(ids_at(seed, 0, 0, 4, 4))
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 24
    # 100 each on average; a Feistel network is not quite uniform over all n! orders.
    assert min(seen.values()) > 40
    assert max(seen.values()) < 180


def test_neighbours_do_not_stay_neighbours():
    order = ids_at(0, 0, 0, 10_000, 10_000)
    together = np.mean(np.abs(np.diff(order)) == 1)
    assert together < 0.002  # 2/n by chance
    assert abs(np.corrcoef(np.arange(10_000), order)[0, 1]) < 0.05


def test_two_epochs_are_unrelated():
    first, second = (ids_at(0, epoch, 0, 10_000, 10_000) for epoch in (0, 1))
    assert np.mean(first == second) < 0.002
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


@pytest.mark.parametrize("start", [0, BILLION // 2, BILLION - 64])
def test_a_billion_samples_cost_no_memory(start):
    ids_at(1, 2, 0, 64, BILLION)  # imports and caches are not the order's memory
    tracemalloc.start()
    ids = ids_at(1, 2, start, start + 64, BILLION)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    assert len(set(ids.tolist())) == 64
    assert ids.min() >= 0
    assert ids.max() < BILLION


def test_ids_of_a_billion_samples_are_distinct_and_spread():
    ids = np.concatenate(
        [ids_at(3, 0, start, start + 5000, BILLION) for start in range(0, BILLION, BILLION // 10)]
    )
    assert len(np.unique(ids)) == len(ids)
    counts, _ = np.histogram(ids, bins=10, range=(0, BILLION))
    assert counts.min() > len(ids) / 10 * 0.9


def test_positions_are_left_as_they_were():
    positions = np.arange(10)
    permute(positions, 10, 1)
    assert np.array_equal(positions, np.arange(10))


def test_a_sample_has_another_key_in_each_epoch_and_with_each_seed():
    ids = np.arange(1000)
    keys = np.concatenate([keys_of(seed, epoch, ids) for seed in (0, 1) for epoch in range(5)])
    assert len(np.unique(keys)) == 10_000


def test_the_key_of_a_sample_does_not_depend_on_its_company():
    ids = np.arange(100)
    keys = keys_of(7, 3, ids)
    mixed = np.array([42, 7, 99])
    assert np.array_equal(keys_of(7, 3, mixed), keys[mixed])
    assert np.array_equal(keys_of(7, 3, ids[::-1].copy()), keys[::-1])


def test_order_and_keys_do_not_share_numbers():
    assert make_key(7, 0, 3) not in keys_of(7, 3, np.arange(1000))


def test_dropout_seeds_are_distinct_and_fit_a_generator():
    seeds = [dropout_seed(0, step, slot) for step in range(300) for slot in range(100)]
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= 0
    assert max(seeds) < 2**63
    assert dropout_seed(1, 0, 0) not in seeds
    assert dropout_seed(0, 0, 1) == seeds[1]
