"""Randomness by integer keys: the same bits in numpy and torch, flat, and unrelated."""

import random
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from phalanx.recipe import keys as k

INT64 = st.integers(-(2**63), 2**63 - 1)
key_arrays = arrays(np.int64, st.integers(1, 5), elements=INT64)
KEYS = k.number_keys(k.make_key(3), np.arange(2000))
# Upper 1e-6 quantiles of chi-square (scipy.stats.chi2.isf(1e-6, df)): keys are fixed, so a test
# either always passes or always fails.
CHI2_15, CHI2_99 = 60.0, 182.0


def chi_square(counts):
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def correlation(first, second):
    return abs(float(np.corrcoef(first.ravel(), second.ravel())[0, 1]))


def same(array, tensor):
    return array.dtype == tensor.numpy().dtype and np.array_equal(array, tensor.numpy())


@given(key_arrays, st.lists(st.integers(1, 4), max_size=3))
def test_bits_are_the_same_in_numpy_and_torch(keys, shape):
    drawn = k.bits(keys, *shape)
    assert drawn.shape == (len(keys), *shape)
    assert same(drawn, k.bits(torch.from_numpy(keys), *shape))


@given(key_arrays, st.floats(-100, 100, width=32), st.floats(0.125, 100, width=32))
def test_uniform_is_the_same_in_numpy_and_torch(keys, low, span):
    bounds = {"low": low, "high": low + span}
    assert same(k.uniform(keys, 3, **bounds), k.uniform(torch.from_numpy(keys), 3, **bounds))


@given(key_arrays, st.integers(-1000, 1000), st.integers(1, 10**12))
def test_integers_are_the_same_in_numpy_and_torch_and_in_range(keys, low, span):
    drawn = k.integers(keys, 4, low=low, high=low + span)
    assert same(drawn, k.integers(torch.from_numpy(keys), 4, low=low, high=low + span))
    assert (drawn >= low).all()
    assert (drawn < low + span).all()


@given(key_arrays, st.lists(st.integers(-5, 2**40) | st.text(max_size=5), min_size=1, max_size=3))
def test_derive_is_the_same_in_numpy_and_torch(keys, tags):
    assert same(k.derive(keys, *tags), k.derive(torch.from_numpy(keys), *tags))


@given(INT64, key_arrays)
def test_number_keys_are_the_same_in_numpy_and_torch(base, numbers):
    assert same(k.number_keys(base, numbers), k.number_keys(base, torch.from_numpy(numbers)))


@given(st.lists(st.integers(-5, 2**63 - 1), min_size=1, max_size=4))
def test_make_key_is_derive_of_zero(numbers):
    assert k.make_key(*numbers) == k.derive(np.zeros(1, np.int64), *numbers)[0]


def test_normal_is_nearly_the_same_in_numpy_and_torch():
    # Logarithm and cosine are the library's own: the last bit may differ.
    ours, theirs = k.normal(KEYS, 8), k.normal(torch.from_numpy(KEYS), 8)
    assert ours.dtype == np.float32
    assert theirs.dtype == torch.float32
    np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5)


def test_bits_are_those_of_splitmix64():
    # First outputs for seed 1234567 (rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64).
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    drawn = k.bits(np.array([1234567]), 5)[0]
    assert [int(value) % 2**64 for value in drawn] == expected


def test_uniform_is_in_its_range_and_flat():
    drawn = k.uniform(KEYS, 50)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts, _ = np.histogram(drawn, bins=100, range=(0, 1))
    assert chi_square(counts) < CHI2_99


@pytest.mark.parametrize(("low", "high"), [(1000.0, 1001.0), (-1.0, 1.0), (0.9, 1.1)])
def test_uniform_never_reaches_its_upper_bound(low, high):
    # 1000 + (1 - 2^-24) rounds to 1001 in float32.
    drawn = k.uniform(KEYS, 200, low=low, high=high)
    assert drawn.min() >= np.float32(low)
    assert drawn.max() < np.float32(high)


def test_uniform_is_flat_over_neighbouring_keys():
    # One draw per sample, keys that differ by one: the weakest spot of a counter hash.
    drawn = k.uniform(np.arange(-10_000, 10_000))
    counts, _ = np.histogram(drawn, bins=100, range=(0, 1))
    assert chi_square(counts) < CHI2_99


def test_integers_are_flat():
    counts = np.bincount(k.integers(KEYS, 20, high=16).ravel(), minlength=16)
    assert chi_square(counts) < CHI2_15


@pytest.mark.parametrize("bit", [0, 1, 31, 32, 62, 63])
def test_every_bit_is_set_half_the_time(bit):
    share = ((k.bits(KEYS, 50) >> bit) & 1).mean()
    assert share == pytest.approx(0.5, abs=0.01)  # 100,000 draws: 6 standard deviations


def test_normal_has_the_mean_and_spread_of_a_normal():
    drawn = k.normal(KEYS, 50)  # 100,000 draws
    assert np.isfinite(drawn).all()
    assert drawn.mean() == pytest.approx(0, abs=0.02)
    assert drawn.std() == pytest.approx(1, abs=0.02)
    assert (np.abs(drawn) < 1).mean() == pytest.approx(0.6827, abs=0.01)
    assert (drawn**3).mean() == pytest.approx(0, abs=0.06)


def test_bernoulli_is_true_as_often_as_asked():
    for probability in (0.0, 0.1, 0.5, 1.0):
        share = k.bernoulli(KEYS, 50, probability=probability).mean()
        assert share == pytest.approx(probability, abs=0.01)


def test_tags_give_unrelated_numbers():
    drawn = [k.uniform(k.derive(KEYS, tag), 10) for tag in ("flip", "crop", 0, 1, 2)]
    drawn.append(k.uniform(KEYS, 10))
    for i, first in enumerate(drawn):
        for second in drawn[i + 1 :]:
            assert correlation(first, second) < 0.04  # 20,000 pairs: 5.6 standard deviations


def test_neighbouring_keys_give_unrelated_numbers():
    drawn = k.uniform(np.arange(5000), 4)
    assert correlation(drawn[:-1], drawn[1:]) < 0.04
    drawn = k.uniform(k.number_keys(k.make_key(0), np.arange(5000)), 4)
    assert correlation(drawn[:-1], drawn[1:]) < 0.04


def test_elements_of_a_draw_are_unrelated():
    drawn = k.uniform(KEYS, 20)
    assert correlation(drawn[:, :-1], drawn[:, 1:]) < 0.03


def test_a_key_draws_the_same_in_any_company():
    whole = k.uniform(KEYS, 3)
    assert np.array_equal(k.uniform(KEYS[7:9], 3), whole[7:9])
    assert np.array_equal(k.uniform(KEYS[::-1].copy(), 3), whole[::-1])


def test_keys_are_distinct():
    assert len(np.unique(k.number_keys(k.make_key(1, 2), np.arange(100_000)))) == 100_000
    assert len({k.make_key(a, b) for a in range(100) for b in range(100)}) == 10_000


def test_the_order_of_numbers_matters():
    assert k.make_key(1, 2) != k.make_key(2, 1)
    assert k.make_key(0) != k.make_key(0, 0)


def test_no_global_generator_is_touched():
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = (random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state())
    tensor = torch.from_numpy(KEYS)
    for keys in (KEYS, tensor):
        k.normal(keys, 2)
        k.integers(keys, 2, high=5)
        k.bernoulli(k.derive(keys, "x"), probability=0.5)
    k.generator(k.make_key(1)).normal(size=10)
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert torch.equal(torch.get_rng_state(), before[2])


def test_a_generator_follows_its_key():
    first = k.generator(-5).normal(size=4)
    assert np.array_equal(k.generator(np.int64(-5)).normal(size=4), first)
    assert not np.array_equal(k.generator(-6).normal(size=4), first)
    assert not np.array_equal(k.generator(5).normal(size=4), first)


@given(st.text(max_size=40))
def test_tags_are_numbered_by_their_checksum(tag):
    assert k._crc32(tag) == zlib.crc32(tag.encode())


def test_a_compiled_forward_that_draws_stays_in_one_piece():
    def draw(keys):
        return k.normal(k.derive(keys, "noise", 3), 4) + k.uniform(k.derive(keys, "size"), 4)

    keys = torch.arange(5)
    explained = torch._dynamo.explain(draw)(keys)
    assert explained.graph_break_count == 0, explained.break_reasons
    assert torch.equal(torch.compile(draw, backend="eager", fullgraph=True)(keys), draw(keys))
