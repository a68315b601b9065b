"""What is wrong with pretrained weights is said all at once, with both sides of it."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from phalanx.engine.checkpoint.pretrained import Pretrained
from phalanx.engine.model.frozen import find_frozen, narrow_frozen
from phalanx.engine.process.group import Process
from phalanx.engine.strategies.single import Single
from phalanx.errors import UserError
from phalanx.recipe import Options, Recipe
from phalanx.recipe.pretrained import Stored


def hold(model):
    return Single(Recipe(Options()), model, Process(0, 1, torch.device("cpu"), "none"))


def problems(stored, model=None):
    with pytest.raises(UserError) as raised:
        Pretrained(stored).load(hold(model or nn.Linear(3, 2)))
    return {finding.slug: finding for finding in raised.value.findings}


def test_names_and_shapes_that_do_not_fit_are_told_together(tmp_path):
    file = tmp_path / "base.safetensors"
    save_file({"w": torch.ones(4, 5), "b": torch.ones(2)}, file)
    stored = {name: Stored(file, inside) for name, inside in zip("xyz", "wb?", strict=True)}
    found = problems({**stored, "weight": Stored(file, "w"), "bias": Stored(file, "b")})
    assert list(found) == ["weights-unknown", "weights-absent", "weights-shape"]
    assert "['x', 'y', 'z']" in found["weights-unknown"].what
    assert "['weight', 'bias']" in found["weights-unknown"].why
    assert "['?']" in found["weights-absent"].what and str(file) in found["weights-absent"].why
    for part in ("`weight` is [2, 3]", "[4, 5]", str(file), "`w`"):
        assert part in found["weights-shape"].why


def test_files_that_are_missing_cut_or_none_are_told_together(tmp_path):
    cut, other, gone = (tmp_path / f"{name}.safetensors" for name in ("cut", "other", "gone"))
    save_file({"weight": torch.ones(2, 3)}, cut)
    whole = cut.stat().st_size
    cut.write_bytes(cut.read_bytes()[:-1])
    other.write_text("version https://git-lfs.github.com/spec/v1")
    model, files = nn.ModuleList([nn.Linear(3, 2) for _ in range(3)]), (cut, other, gone)
    stored = {f"{index}.weight": Stored(file, "weight") for index, file in enumerate(files)}
    with pytest.raises(UserError) as raised:
        Pretrained(stored).load(hold(model))
    texts = {finding.what: finding.why for finding in raised.value.findings}
    assert {finding.slug for finding in raised.value.findings} == {"weights-unreadable"}
    whys = [next(why for what, why in texts.items() if str(file) in what) for file in files]
    assert f"{whole - 1:,} of {whole:,} bytes" in whys[0]
    assert "no safetensors file" in whys[1] and "FileNotFoundError" in whys[2]


def test_a_fingerprint_sees_one_element_and_not_where_the_file_lies(tmp_path):
    model = nn.Linear(3, 2).requires_grad_(False)
    files = [tmp_path / f"{name}.safetensors" for name in "abc"]
    values = torch.arange(6.0).view(2, 3)
    for file, last in zip(files, (5.0, 5.0, 6.0), strict=True):
        save_file({"weight": values.clamp(max=last + 1).where(values < 5, last)}, file)
    records = [Pretrained({"weight": Stored(file, "weight")}).record(model) for file in files]
    same = Pretrained({"weight": Stored(files[0], "weight")})
    assert same.changes(records[1], model) == []
    (finding,) = same.changes(records[2], model)
    assert "`c.safetensors`" in finding.why and "`a.safetensors`" in finding.why
    assert Pretrained().changes(records[0], model)[0].why.count("now: none") == 1
    model.requires_grad_(True)
    assert same.record(model) is None, "what learns is saved"


def test_only_what_is_rounded_anyway_is_narrow():
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(4, 2),
            "head": nn.Linear(2, 4),
            "conv": nn.Conv2d(2, 2, 1),
            "norm": nn.LayerNorm(2),
            "learns": nn.Linear(2, 2),
            "mixed": nn.Linear(2, 2),
        }
    ).requires_grad_(False)
    model["learns"].requires_grad_(True)
    model["head"].weight = model["embed"].weight
    model["norm"].weight = model["mixed"].bias
    names = {p: name for name, p in model.named_parameters()}
    assert {names[p]: held for p, held in find_frozen(model).items()} == {
        "embed.weight": "bf16",
        "head.bias": "half",
        "conv.weight": "half",
        "conv.bias": "half",
        "mixed.weight": "half",
    }
    narrow_frozen(model, "fp16", torch.float16)
    assert model["head"].weight.dtype == torch.float32, "an embedding in fp16 would overflow"
    model["conv"].weight.data = model["conv"].weight.data.float()
    narrow_frozen(model, "bf16", torch.bfloat16)
    assert model["head"].weight is model["embed"].weight
    assert model["embed"].weight.dtype == model["conv"].weight.dtype == torch.bfloat16
    assert model["norm"].weight.dtype == model["learns"].weight.dtype == torch.float32
