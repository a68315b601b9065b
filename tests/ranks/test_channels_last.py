"""`channels_last: on` changes where numbers lie and nothing else: losses, files, resuming."""

import pytest
import torch

from tests.ranks.runs import FIXTURES, averages, change_run, losses, make_run, train, weights

BARS = {
    "recipe": f"{FIXTURES / 'recipes' / 'learners.py'}:BarRecipe",
    "options": {},
    "global_batch_size": 10,
    "micro_batch_size": 5,
    "steps": 4,
    "ema": {"decay": 0.9},
    "evaluate": {"every": None},
}


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_goes_on_in_the_other_layout(pool, tmp_path, ranks):
    """A checkpoint of either layout has the same bytes in the same places: what one wrote, the
    other reads, optimizer and average included."""
    runs = {}
    for word, other in (("off", "off"), ("on", "on"), ("on", "off")):
        folder = tmp_path / f"{word}-{other}"
        run = make_run(folder, ranks=ranks, channels_last=word, stop_after="2 steps", **BARS)
        train(pool, run, ranks=ranks)
        changed = change_run(run, stop_after=None, channels_last=other)
        runs[word, other] = train(pool, changed, ranks=ranks)
    plain = runs["off", "off"]
    for run in runs.values():
        assert losses(run) == pytest.approx(losses(plain), rel=1e-9)
        for read in (weights, averages):
            for name, value in read(plain).items():
                torch.testing.assert_close(read(run)[name], value, rtol=1e-7, atol=1e-9)
