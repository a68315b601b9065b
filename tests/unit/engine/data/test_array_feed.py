"""Arrays in memory: a chunk of micro-batches is, bit for bit, what fetching one at a time gives."""

from itertools import chain

import numpy as np
import pytest
import torch

from phalanx.engine.data.array_feed import Gathering, is_gathered, weights_by_size
from phalanx.engine.data.micro_batches import Fetcher, Request, name_samples
from phalanx.errors import UserError
from phalanx.planner.schema.micro_batches import BatchPlan
from phalanx.recipe import Options, Recipe, Tensors, keys

SIZE, SEED, CPU = 1003, 5, torch.device("cpu")


def make_arrays():
    generator = np.random.default_rng(3)
    return {
        "x": generator.normal(size=(SIZE, 7)).astype(np.float32),  # rows of 28 bytes
        "mask": generator.integers(2, size=(SIZE, 3)).astype(bool),  # of 3
        "y": generator.integers(9, size=SIZE),
    }


def jitter(batch, sample_keys):
    """The kind of change whose last bits depend on where a row lies in what a kernel is given."""
    noise = keys.normal(keys.derive(sample_keys, "jitter"), 7)
    return {**batch, "x": torch.exp(batch["x"] * 0.1) + noise}


class Counting(Recipe):
    """Weights that depend on what is in a batch."""

    def weight(self, batch):
        return {"fit": batch["mask"].sum(), "size": float(len(batch["y"]))}


class Late(Recipe):
    def weight(self, batch):
        return None


def gathered(data, recipe, *, start=0, steps=160, is_kept=False, rank=0, ranks=1):
    """The micro-batches of a rank, as a run of its own gets them."""
    plan = BatchPlan(SIZE, 32, 13)  # 11 samples in the last step of an epoch; slots of 10 and 11
    shares = (plan.share_of(step, rank, ranks) for step in range(start, steps))
    requests = (Request(share.epoch, slot, True) for share in shares for slot in share.slots)
    gathering = Gathering(recipe, data, seed=SEED, device=CPU, is_kept_on_device=is_kept, pin=False)
    return list(gathering.gather(name_samples(requests, seed=SEED, size=SIZE)))


def fetched(data, recipe, *, steps=160):
    plan = BatchPlan(SIZE, 32, 13)
    fetcher = Fetcher(recipe, data, seed=SEED, is_shuffled=True)
    shares = (plan.share_of(step, 0, 1) for step in range(steps))
    return [fetcher[Request(share.epoch, slot, True)] for share in shares for slot in share.slots]


def assert_same(ones, others):
    assert len(ones) == len(others)
    for one, other in zip(ones, others, strict=True):
        assert (one.slot, one.weights, list(one.batch)) == (
            other.slot,
            other.weights,
            list(other.batch),
        )
        assert np.array_equal(one.ids, other.ids)
        assert torch.equal(one.keys, other.keys)
        for name, tensor in one.batch.items():
            assert tensor.dtype == other.batch[name].dtype
            assert torch.equal(tensor, other.batch[name])


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("kind", [Recipe, Counting, Late])
@pytest.mark.parametrize("change", [None, jitter])
def test_chunks_are_what_fetching_one_at_a_time_gives(change, kind, is_kept):
    data, recipe = Tensors(make_arrays(), change=change), kind(Options())
    assert is_gathered(data)
    # "Kept on the device" with a CPU as the device: the path of a GPU, with no GPU.
    assert_same(gathered(data, recipe, is_kept=is_kept), fetched(data, recipe))


@pytest.mark.parametrize("start", [1, 5, 31, 33, 100])
def test_a_run_that_resumes_inside_a_chunk_goes_on_with_the_same_bits(start):
    data, recipe = Tensors(make_arrays(), change=jitter), Recipe(Options())
    plan = BatchPlan(SIZE, 32, 13)
    before = sum(len(plan.slots_of(step)) for step in range(start))
    resumed = gathered(data, recipe, start=start)
    assert_same(resumed, gathered(data, recipe)[before:])
    # Kernels may take another path, with other last bits, where memory is not aligned.
    tensors = chain.from_iterable((m.keys, *m.batch.values()) for m in resumed)
    assert {tensor.data_ptr() % 64 for tensor in tensors} == {0}


def test_ranks_share_the_micro_batches_of_one():
    data, recipe = Tensors(make_arrays(), change=jitter), Counting(Options())
    parts = [gathered(data, recipe, rank=rank, ranks=2) for rank in (0, 1)]
    alone = {tuple(m.ids): m for m in gathered(data, recipe)}
    assert_same(list(chain(*parts)), [alone[tuple(m.ids)] for m in chain(*parts)])


def test_weights_are_asked_for_by_size_unless_they_depend_on_values():
    data = Tensors(make_arrays(), change=jitter)
    by_size = weights_by_size(Recipe(Options()), data)
    assert by_size(11) == {"*": 11.0}
    assert weights_by_size(Late(Options()), data)(3) is None
    assert weights_by_size(Counting(Options()), data) is None


def test_global_generators_belong_to_the_micro_batch_in_a_change_too():
    def draw(batch, sample_keys):
        return {**batch, "draw": torch.rand(len(sample_keys)) + np.random.rand()}

    data, recipe = Tensors(make_arrays(), change=draw), Recipe(Options())
    before = len(gathered(data, recipe, steps=40))
    torch.rand(3)
    assert_same(gathered(data, recipe, start=40), gathered(data, recipe)[before:])


def test_memory_mapped_arrays_are_read_where_they_are(tmp_path, recwarn):
    arrays = make_arrays()
    np.save(tmp_path / "x.npy", arrays["x"])
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = Tensors({**arrays, "x": mapped})
    assert data.arrays["x"].data_ptr() == mapped.ctypes.data
    assert not recwarn.list
    assert data.num_bytes == sum(array.nbytes for array in arrays.values())
    assert_same(
        gathered(data, Recipe(Options()), steps=5),
        fetched(Tensors(arrays), Recipe(Options()), steps=5),
    )


def test_arrays_of_unequal_length_are_refused():
    with pytest.raises(UserError) as caught:
        Tensors({"x": np.zeros(3), "y": np.zeros(4)})
    (finding,) = caught.value.findings
    assert finding.slug == "tensors-length"
    assert finding.why == "x: 3, y: 4"


def test_a_data_set_with_a_fetch_of_its_own_is_asked_for_it():
    class Own(Tensors):
        def __getitems__(self, ids, sample_keys):
            return {"id": torch.from_numpy(ids)}

    assert not is_gathered(Own(make_arrays()))
