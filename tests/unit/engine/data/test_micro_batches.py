"""From positions to batches: fetching, global generators, nested tensors, one step ahead."""

import random
from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from phalanx.engine.data.loader import Loader
from phalanx.engine.data.micro_batches import (
    ANY_TERM,
    Fetcher,
    MicroBatch,
    Request,
    choose_fetch,
    map_tensors,
    name_samples,
    weigh,
)
from phalanx.engine.data.order import ids_at, keys_of
from phalanx.engine.data.step_feed import Feed
from phalanx.planner.schema.micro_batches import BatchPlan, Slot
from phalanx.recipe import Options, Recipe

Pair = namedtuple("Pair", "left right")
IDS, KEYS = np.array([4, 0, 2]), np.array([40, 10, 20])


class Batched:
    def __len__(self):
        return 10

    def __getitems__(self, ids, keys):
        return {"id": torch.from_numpy(ids), "key": torch.from_numpy(keys)}


class BatchedWithoutKeys:
    def __getitems__(self, ids):
        assert all(type(i) is int for i in ids)
        return [{"id": i, "key": -1} for i in ids]

    def __getitem__(self, index):
        raise AssertionError("batched fetching is preferred")


class SingleWithKey:
    def __getitem__(self, index, key):  # noqa: PLE0302 what a recipe may offer
        return {"id": index, "key": key}


class SingleWithOptionalKey:
    def __getitem__(self, index, key=None):
        return {"id": index, "key": key}


class Single:
    def __getitem__(self, index):
        return {"id": index, "key": -1}


class Noisy:
    """Draws from the global generators, as most data sets do."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        draws = [random.random(), np.random.rand(), torch.rand(()).item()]
        return {"id": index, "draws": torch.tensor(draws, dtype=torch.float64)}


@pytest.mark.parametrize(
    ("kind", "has_keys"),
    [
        (Batched, True),
        (BatchedWithoutKeys, False),
        (SingleWithKey, True),
        (SingleWithOptionalKey, True),
        (Single, False),
    ],
)
def test_each_kind_of_data_set_is_asked_its_own_way(kind, has_keys):
    batch = choose_fetch(kind())(IDS, KEYS)
    assert batch["id"].tolist() == [4, 0, 2]
    assert batch["key"].tolist() == ([40, 10, 20] if has_keys else [-1, -1, -1])


def test_torchs_own_data_sets_are_understood():
    data = TensorDataset(torch.arange(10) * 2, torch.arange(10) * 3)
    first, second = choose_fetch(data)(IDS, KEYS)
    assert (first.tolist(), second.tolist()) == ([8, 0, 4], [12, 0, 6])
    first, _ = choose_fetch(Subset(data, [9, 8, 7, 6, 5]))(IDS, KEYS)
    assert first.tolist() == [10, 18, 14]
    assert choose_fetch(list(range(100, 110)))(IDS, KEYS).tolist() == [104, 100, 102]


def test_tensors_are_mapped_in_any_nesting():
    tree = {
        "a": [torch.ones(1), (torch.ones(1), "text")],
        "b": Pair(torch.ones(1), {"c": torch.ones(1)}),
        "d": None,
        "e": 3,
        "f": OrderedDict(g=torch.ones(1)),
    }
    mapped = map_tensors(tree, lambda tensor: tensor * 5)
    assert mapped["a"][0].item() == 5
    assert isinstance(mapped["a"][1], tuple)
    assert mapped["a"][1][0].item() == 5
    assert mapped["a"][1][1] == "text"
    assert isinstance(mapped["b"], Pair)
    assert mapped["b"].left.item() == 5
    assert mapped["b"].right["c"].item() == 5
    assert (mapped["d"], mapped["e"]) == (None, 3)
    assert mapped["f"]["g"].item() == 5
    assert tree["a"][0].item() == 1


def test_a_micro_batch_stays_one_when_its_tensors_are_mapped():
    micro = MicroBatch(3, {"x": torch.ones(2)}, torch.ones(2), {"fit": 2.0})
    mapped = map_tensors(micro, lambda t: t.double())
    assert isinstance(mapped, MicroBatch)
    assert (mapped.slot, mapped.weights) == (3, {"fit": 2.0})
    assert mapped.batch["x"].dtype == mapped.keys.dtype == torch.float64


def make_fetcher(data, *, is_shuffled=True, recipe=None):
    return Fetcher(recipe or Recipe(Options()), data, seed=5, is_shuffled=is_shuffled)


def test_a_fetched_slot_has_the_ids_and_keys_of_its_positions():
    micro = make_fetcher(Batched())[Request(3, Slot(1, 4, 9), True)]
    ids = ids_at(5, 3, 4, 9, 10)
    assert micro.slot == 1
    assert micro.batch["id"].tolist() == ids.tolist()
    assert micro.keys.tolist() == micro.batch["key"].tolist() == keys_of(5, 3, ids).tolist()
    assert micro.weights == {ANY_TERM: 5.0}


def test_data_that_takes_an_epoch_is_told_which_and_of_how_many():
    class Changing(Batched):
        def __getitems__(self, ids, keys, epoch):
            return {**super().__getitems__(ids, keys), "epoch": torch.tensor([epoch] * len(ids))}

    fetcher = Fetcher(Recipe(Options()), Changing(), seed=5, is_shuffled=True, epochs=7)
    micro = fetcher[Request(3, Slot(1, 4, 9), True)]
    assert micro.batch["epoch"].tolist() == [[3, 7]] * 5
    plain = make_fetcher(Batched())[Request(3, Slot(1, 4, 9), True)]
    assert micro.batch["id"].tolist() == plain.batch["id"].tolist()


class Broken(Single):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 4:
            raise ValueError("no annotation")
        return super().__getitem__(index)


class BrokenBatched(Batched):
    def __getitems__(self, ids, keys):
        raise ValueError("no annotation")


@pytest.mark.parametrize(
    ("data", "which"),
    [(Broken(), "sample 4"), (BrokenBatched(), "samples 2, 3, 4, 5")],
    ids=["single", "batched"],
)
def test_an_exception_of_a_data_set_names_the_samples(data, which):
    with pytest.raises(ValueError, match="no annotation") as caught:
        make_fetcher(data, is_shuffled=False)[Request(0, Slot(0, 2, 6), True)]
    assert caught.value.__notes__ == [f"phalanx: while fetching {which}"]


def test_evaluation_keeps_the_order_and_weighs_nothing():
    micro = make_fetcher(Batched(), is_shuffled=False)[Request(0, Slot(0, 2, 6), False)]
    assert micro.batch["id"].tolist() == [2, 3, 4, 5]
    assert micro.weights is None


def test_global_generators_give_the_same_whoever_fetches_in_whatever_order():
    requests = [Request(1, Slot(i, 5 * i, 5 * i + 5), True) for i in range(4)]
    straight = {r: make_fetcher(Noisy())[r] for r in requests}
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
    fetcher = make_fetcher(Noisy())
    for request in reversed(requests):
        torch.rand(7)
        again = fetcher[request]
        assert torch.equal(again.batch["draws"], straight[request].batch["draws"])
    draws = torch.cat([micro.batch["draws"].flatten() for micro in straight.values()])
    assert len(draws.unique()) == draws.numel() == 60


def test_global_generators_differ_between_epochs():
    slot = Slot(0, 0, 5)
    first, second = (make_fetcher(Noisy())[Request(e, slot, True)] for e in (0, 1))
    assert not torch.equal(first.batch["draws"], second.batch["draws"])


def test_loader_processes_give_what_the_training_process_would():
    requests = [Request(e, Slot(i, 5 * i, 5 * i + 5), True) for e in (0, 1) for i in range(4)]
    settings = {"prefetch": 2, "pin": False}
    here = list(Loader(make_fetcher(Noisy()), requests, workers=0, **settings))
    there = list(Loader(make_fetcher(Noisy()), iter(requests), workers=2, **settings))
    assert len(here) == len(there) == 8
    for one, other in zip(here, there, strict=True):
        assert isinstance(other, MicroBatch)
        assert one.slot == other.slot
        assert one.weights == other.weights
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.batch["id"], other.batch["id"])
        assert torch.equal(one.batch["draws"], other.batch["draws"])


def test_a_loader_can_be_iterated_again():
    requests = [Request(0, Slot(i, 5 * i, 5 * i + 5), False) for i in range(4)]
    loader = Loader(make_fetcher(Noisy()), requests, workers=0, prefetch=2, pin=False)
    assert [m.slot for m in loader] == [m.slot for m in loader] == [0, 1, 2, 3]


class Weighing(Recipe):
    def __init__(self, answer):
        super().__init__(Options())
        self._answer = answer

    def weight(self, batch):
        return self._answer


@pytest.mark.parametrize(
    ("answer", "weights"),
    [
        (3, {ANY_TERM: 3.0}),
        (torch.tensor(2.5), {ANY_TERM: 2.5}),
        ({"a": 1, "b": torch.tensor(2)}, {"a": 1.0, "b": 2.0}),
        (None, None),
    ],
)
def test_weights_are_numbers_by_term(answer, weights):
    assert weigh(Weighing(answer), {}) == weights


class FeedParts:
    """A feed of one rank that writes down when it fetches."""

    def __init__(self, *, steps=4, terms=("a", "b"), wishes=None):
        self.plan = BatchPlan(num_samples=20, global_batch_size=5, micro_batch_size=2)
        self.fetched = []
        self.reduced = []
        shares = [self.plan.share_of(step, 0, 1) for step in range(steps)]
        self.feed = Feed(
            shares,
            self._load(shares),
            terms=list(terms) if terms is not None else None,
            reduce=self._reduce,
            wishes=wishes or (lambda share: (False, False)),
        )

    def _load(self, shares):
        for share in shares:
            for slot in share.slots:
                self.fetched.append((share.step, slot.index))
                size = float(slot.stop - slot.start)
                keys = torch.arange(slot.start, slot.stop)
                yield MicroBatch(slot.index, {"x": keys}, keys, {"a": size, "b": 10 * size})

    def _reduce(self, figures):
        self.reduced.append(figures)


def test_a_feed_is_one_step_ahead_and_no_more():
    parts = FeedParts()
    steps = iter(parts.feed)
    assert parts.fetched == []
    assert next(steps).share.step == 0
    assert parts.fetched[-1] == (1, 2)
    assert len(parts.reduced) == 2
    assert next(steps).share.step == 1
    assert parts.fetched[-1] == (2, 2)
    assert [s.share.step for s in steps] == [2, 3]


def test_a_step_knows_how_long_samples_were_waited_for(monkeypatch):
    ticks = iter(range(100))  # a second between two looks at the clock
    clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)))
    monkeypatch.setattr("phalanx.engine.data.step_feed.time", clock)
    parts = FeedParts(steps=3, terms=None)
    parts.feed._reduce = None
    assert [step.waited_s for step in parts.feed] == [1.0, 1.0, 0.0]


def test_weights_of_a_step_are_summed_over_its_slots():
    for step in FeedParts().feed:
        assert [m.slot for m in step.micro_batches] == [0, 1, 2]
        assert step.weights == {"a": 5.0, "b": 50.0}


def test_weights_that_depend_on_predictions_are_not_known_ahead():
    assert [step.weights for step in FeedParts(terms=None).feed] == [None] * 4


def test_wishes_arrive_with_the_step_they_were_made_for():
    wishes = {1: (False, True), 2: (True, False)}
    feed = FeedParts(wishes=lambda share: wishes.get(share.step, (False, False))).feed
    assert [(s.must_stop, s.must_save) for s in feed] == [
        (False, False),
        (False, True),
        (True, False),
        (False, False),
    ]


def test_a_feed_waits_for_the_reduction_before_it_reads_it():
    parts = FeedParts(steps=2)

    class Doubling:
        def __init__(self, figures):
            self.figures = figures

        def wait(self):
            self.figures.mul_(2)

    parts.feed._reduce = Doubling
    assert [step.weights for step in parts.feed] == [{"a": 10.0, "b": 100.0}] * 2


def test_a_rank_alone_has_nothing_to_reduce():
    parts = FeedParts(wishes=lambda share: (share.step == 1, share.step == 2))
    parts.feed._reduce = None
    steps = list(parts.feed)
    assert [step.weights for step in steps] == [{"a": 5.0, "b": 50.0}] * 4
    assert [(s.must_stop, s.must_save) for s in steps[1:3]] == [(True, False), (False, True)]


def test_a_step_begins_after_the_copies_of_its_micro_batches():
    parts = FeedParts(steps=2)
    waited = []

    class Copied:
        def __init__(self, keys):
            self.keys = keys

        def wait(self):
            waited.append(self.keys)

    parts.feed._loader = (m._replace(copied=Copied(m.keys.tolist())) for m in parts.feed._loader)
    steps = iter(parts.feed)
    next(steps)
    assert waited == [[0], [1, 2], [3, 4]]  # and none of the step that is fetched ahead
    next(steps)
    assert waited[3:] == [[5], [6, 7], [8, 9]]


class KnownParts(FeedParts):
    """A rank of several that knows the weights of every step by itself."""

    def __init__(self, **settings):
        super().__init__(steps=400, **settings)
        self.feed._known_weights = lambda share: [50.0, 500.0]
        self.feed._reduce = self._sum_of_ten

    def _sum_of_ten(self, figures):
        self.reduced.append(figures.tolist())
        figures[:-1] *= 10  # the interval is the first rank's alone


def test_ranks_that_know_the_weights_ask_for_wishes_now_and_then():
    parts = KnownParts()
    steps = list(parts.feed)
    assert {tuple(step.weights.items()) for step in steps} == {(("a", 50.0), ("b", 500.0))}
    assert (
        2 < len(parts.reduced) < 40
    )  # steps of microseconds: at most one in 50, once that is known
    assert not any(step.must_stop or step.must_save for step in steps)


def test_a_wish_is_kept_until_the_ranks_ask():
    parts = KnownParts(wishes=lambda share: (False, share.step == 123))
    heard = [step.share.step for step in parts.feed if step.must_save]
    assert len(heard) == 1
    assert 123 <= heard[0] <= 123 + 50


def test_ranks_with_slow_steps_hear_a_wish_at_once(monkeypatch):
    seconds = 0.0
    clock = SimpleNamespace(perf_counter=lambda: seconds)
    monkeypatch.setattr("phalanx.engine.data.step_feed.time", clock)
    parts = KnownParts(wishes=lambda share: (False, share.step == 9))
    heard = []
    for step in parts.feed:  # the first two are fetched within no time
        seconds += 1.0
        heard += [step.share.step] if step.must_save else []
    assert heard == [9]


def test_a_stop_that_every_rank_knows_of_is_exact():
    parts = KnownParts(wishes=lambda share: (share.step >= 123, False))
    parts.feed._stop_at = 123
    assert next(step.share.step for step in parts.feed if step.must_stop) == 123


def test_a_feed_without_steps_is_empty():
    assert list(FeedParts(steps=0).feed) == []


def test_requests_are_named_like_the_fetcher_would():
    plan = BatchPlan(50, 10, 3)
    requests = [
        Request(step // 5, slot, is_training=True)
        for step in range(40)
        for slot in plan.slots_of(step)
    ]
    named = [request for some in name_samples(requests, seed=5, size=50) for request in some]
    assert len(named) == len(requests) > 64
    for request, known in zip(requests, named, strict=True):
        expected = ids_at(5, request.epoch, request.slot.start, request.slot.stop, 50)
        assert np.array_equal(known.ids, expected)
        assert np.array_equal(known.keys, keys_of(5, request.epoch, expected))
        assert known[:3] == request[:3]
