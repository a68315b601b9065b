"""benchmarks/peers: what is judged against what; the recipes train what the peers train."""

import json
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from phalanx.recipe.loading import load_recipe
from tests.fixtures.scripts import beside

FOLDER = Path(__file__).parents[2] / "benchmarks" / "peers"
ABOUT = {
    "date": "2026-11-15 10:00 UTC", "machine": "NVIDIA H200", "cores": 16, "python": "3.12",
    "torch": "2.11", "commit": "abc", "command": "python run_gpu.py",
}  # fmt: skip
SIZES = {
    "Gpt2": {"symbols": 19, "length": 8, "width": 16, "heads": 2, "depth": 2},
    "Policy": {"width": 16, "heads": 2, "depth": 2},
}


@pytest.fixture(autouse=True)
def _beside():
    with beside("peers"):
        yield


def _line(work, contestant, rate=None, **more):
    figures = {"samples_per_s": rate, "slowest": rate, "quickest": rate} if rate else {}
    return json.dumps({"work": work, "contestant": contestant, "about": ABOUT, **figures, **more})


def test_report_judges_against_the_limit_and_the_best_stock_peer(tmp_path):
    import report
    from chart import draw_chart

    lines = [
        _line("gpt2", "phalanx", 97.0, first_event_step=10, first_event_s=40.0),
        _line("gpt2", "phalanx-second-start", first_event_step=10, first_event_s=13.0),
        _line("gpt2", "plain-compiled", 100.0),
        _line("gpt2", "plain", 41.0, first_step_s=9.0, tenth_step_s=10.0),
        _line("gpt2", "hf-trainer", 40.0),
        _line("gpt2", "hf-trainer-compiled", 90.0),
        _line("gpt2", "hf-trainer", left_out=True),
        _line("gpt2", "lightning", error="exit code 1:\nTraceback\nValueError: no <such> thing"),
        _line("resnet", "phalanx", 50.0),
        _line("resnet", "compute-limit", 100.0),
        _line("resnet", "decode-limit", 60.0),
    ]
    file = tmp_path / "peers.jsonl"
    file.write_text("\n".join(lines))
    records = report.read_records([file])
    text = "\n".join(report.make_report(records))
    assert "of the limit: 0.970, asked at least 0.97: reached" in text
    assert "the best stock peer: 2.42, asked at least 2.5: **not reached**" in text
    assert (
        "of the limit: 0.833, asked at least 0.95: **not reached**" in text
    )  # decoding's, not 100
    assert "second start, gpt2: 1.30, asked at most 1.3: reached" in text
    assert "failed: Lightning: `ValueError: no <such> thing`" in text
    assert "| HF Trainer | 40 |" in text  # a turn left out later does not hide it
    panels = report.panels(report.by_contestant(records))
    drawn = ElementTree.fromstring(draw_chart(panels, source="a & b"))  # noqa: S314
    bars = drawn.findall("{http://www.w3.org/2000/svg}rect")
    assert len(bars) == 5 + 3
    assert max(float(bar.get("width")) for bar in bars) == 400


class FakeGpt2(torch.nn.Module):
    """Stands in for transformers', which the tests do not install: scores of one word each."""

    def __init__(self, sizes):
        super().__init__()
        self.words = torch.nn.Embedding(sizes["symbols"], sizes["symbols"])

    def forward(self, tokens):
        return SimpleNamespace(logits=self.words(tokens))


@pytest.mark.parametrize("name", sorted(SIZES))
def test_a_recipe_and_the_peers_have_the_same_loss(name, monkeypatch):
    import works
    from works import find_work

    monkeypatch.setattr(works, "make_gpt2", FakeGpt2)
    work = find_work({"Gpt2": "gpt2", "Policy": "policy"}[name])
    work.sizes, work.samples = {**work.sizes, **SIZES[name]}, 4
    recipe = load_recipe(f"{FOLDER / 'recipes.py'}:{name}", {**SIZES[name], "samples": 4})
    peer, ours = work.model(), recipe.model()
    ours.load_state_dict(peer.net.state_dict())
    batch = recipe.data("train").__getitems__(np.arange(4), np.arange(4))
    samples = torch.utils.data.default_collate([work.data()[index] for index in range(4)])
    torch.manual_seed(3)
    (term,) = recipe.loss(ours, batch, torch.arange(4)).values()
    torch.manual_seed(3)
    torch.testing.assert_close(term.sum / term.weight, peer(**samples)["loss"])


def test_photographs_are_cropped_by_their_key_and_in_any_decoding(tmp_path):
    from photos import KeyedPhotos, WholePhotos, write_photo

    (tmp_path / "one").mkdir()
    write_photo(tmp_path / "one" / "a.jpg", 0)
    whole, drafted = (
        KeyedPhotos(tmp_path, 64, is_drafted=is_drafted, is_training=True)
        for is_drafted in (False, True)
    )
    first = whole.__getitem__(0, 5)["pixels"]
    assert first.shape == (3, 64, 64)
    assert first.dtype == torch.uint8
    assert torch.equal(first, whole.__getitem__(0, 5)["pixels"])
    assert not torch.equal(first, whole.__getitem__(0, 6)["pixels"])
    kept = WholePhotos(tmp_path, 64, is_drafted=False, is_training=True)
    for key in range(8):
        assert torch.equal(kept.__getitem__(0, key)["pixels"], whole.__getitem__(0, key)["pixels"])
        apart = (
            whole.__getitem__(0, key)["pixels"].float()
            - drafted.__getitem__(0, key)["pixels"].float()
        )
        assert apart.abs().mean() < 8  # of 255: the same place, through another filter
