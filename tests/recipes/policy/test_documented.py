"""Every command of README and docs for the policy recipe, on few demonstrations."""

import json
from importlib.util import find_spec

import pytest

from tests.cli.command import run_cli
from tests.cli.documented import asked, assert_runs
from tests.cli.kept_launcher import answers_in
from tests.recipes.policy.robots import write_libero, write_swings

pytestmark = [pytest.mark.ranks, pytest.mark.full]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What commands do not collect: pictures, HDF5 files of LIBERO, a SigLIP."""
    path = tmp_path_factory.mktemp("docs")
    write_swings(path / "kitchen", episodes=2, steps=4, cameras=("wrist", "front"))
    write_libero(path / "libero_90" / "open_the_drawer_demo.hdf5")
    write_seer(path / "siglip")
    with answers_in(path):
        yield path


def write_seer(folder):
    """A small SigLIP as the hub has it."""
    from transformers import SiglipConfig, SiglipModel

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
             "num_attention_heads": 2}  # fmt: skip
    seen = {**sizes, "image_size": 48, "patch_size": 8}
    config = SiglipConfig(text_config={**sizes, "vocab_size": 50}, vision_config=seen)
    SiglipModel(config).save_pretrained(folder)
    about = {"size": {"height": 48, "width": 48}, "image_mean": [0.4] * 3, "image_std": [0.2] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(about))


@pytest.mark.parametrize("question", asked("policy"), ids=str)
def test_a_robot(question, folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    if "libero_90" in question.words and find_spec("libero") is None:
        code, out, err = run_cli(*question.words)
        said = f"{question.command}\n{out}{err}"
        assert (code, "error[policy-libero]" in err) == (2, True), said
        return
    assert_runs(question)
