"""The lora recipe trains the same on any ranks, strategy and accumulation, and goes on from any
checkpoint; its adapters are PEFT's."""

import json

import pytest
import torch
from safetensors.torch import load_file

from phalanx.engine.data.order import INIT
from phalanx.recipe.keys import make_key
from phalanx.recipe.loading import load_recipe
from tests.ranks.runs import assert_same_bits, change_run, full, losses, make_run, train, weights
from tests.ranks.test_deepspeed import TOLERANCE as FP32
from tests.recipes.lora.logits import from_peft, said, trained_network
from tests.unit.job.test_deepspeed import G3

pytestmark = pytest.mark.ranks
FP64 = 1e-9
WARMUP = {"name": "constant", "warmup": "1 steps"}  # what the guide's file of DeepSpeed asks for


def options_of(model, rows, **changes):
    given = {"model": model, "data": rows, "r": 4, "test_share": 0.2, "completions": 1}
    return {**given, "max_new_tokens": 4, "pad_to": 8, **changes}


def lora(folder, options, *, ranks, **changes):
    """A run of 6 steps: 32 rows, 4 steps an epoch, the last of them small."""
    settings = {"recipe": "lora", "steps": 6, "checkpoint": {"every": "3 steps"}}
    settings |= {"evaluate": {"every": "3 steps"}, "schedule": WARMUP, **changes}
    return make_run(folder, ranks=ranks, options=options, **settings)


@pytest.fixture(scope="module")
def single(pool, model, rows, tmp_path_factory):
    """On one rank, by precision."""
    made = {}
    for precision in ("fp64", "fp32"):
        folder = tmp_path_factory.mktemp(precision)
        run = lora(folder, options_of(model, rows), ranks=1, precision=precision)
        made[precision] = train(pool, run, ranks=1)
    return made


def assert_peft_says_the_same(run, options, dtype, tolerance):
    for folder, name in ((run.checkpoints / "checkpoint-3", "checkpoint-3"), (None, "best")):
        expected = said(trained_network(run, options, dtype, name))
        found = said(from_peft(options["model"], folder or run.final_model, dtype))
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
        base = said(from_peft(options["model"], run.final_model, dtype).unload())
        assert (expected - base).abs().max() > 0.01, "nothing was learned"


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        full(1, {}, id="single"),
        pytest.param(2, {}, id="ddp"),
        full(2, {"strategy": "fsdp"}, id="fsdp"),
        pytest.param(2, {"strategy": "fsdp", "fsdp": {"build": "parts"}}, id="parts"),
    ],
)
def test_every_strategy_trains_what_one_rank_trains(
    pool, single, model, rows, tmp_path, ranks, changes
):
    options, expected = options_of(model, rows), single["fp64"]
    run = expected
    if ranks > 1:
        run = train(pool, lora(tmp_path, options, ranks=ranks, **changes), ranks=ranks)
    assert losses(run) == pytest.approx(losses(expected), rel=0, abs=FP64)
    assert_peft_says_the_same(run, options, torch.float64, 1e-12)


ZERO_3 = {"stage": 3, "config": {"zero_optimization": {"stage3_param_persistence_threshold": 60}}}


@pytest.mark.parametrize(
    ("precision", "stage", "tolerance"),
    [
        full("fp32", 2, FP32, id="zero-2"),
        pytest.param("fp32", 3, FP32, id="zero-3"),
        # As the guide has it, in bf16: its steps are near 0.03 at losses near 6.
        pytest.param("bf16", 2, 0.05, id="guide"),
    ],
)
def test_deepspeed_trains_what_one_rank_trains(
    pool, single, model, rows, tmp_path, precision, stage, tolerance
):
    options, settings = options_of(model, rows), ZERO_3
    if stage == 2:
        content = json.loads(G3)
        content["bf16"]["enabled"] = precision == "bf16"
        (tmp_path / "ds.json").write_text(json.dumps(content))
        settings = {"config": str(tmp_path / "ds.json")}
    given = {"strategy": "deepspeed", "deepspeed": settings, "precision": precision}
    run = train(pool, lora(tmp_path, options, ranks=2, **given), ranks=2)
    assert losses(run) == pytest.approx(losses(single["fp32"]), rel=0, abs=tolerance)
    assert_peft_says_the_same(run, options, torch.float32, 1e-5)


def plain_loop(options, seed, rate, steps):
    """What a person would write: each sample alone, its tokens' losses summed, over all tokens."""
    recipe = load_recipe("lora", options)
    torch.manual_seed(make_key(seed, INIT) & (1 << 62) - 1)
    network = recipe.model().double()
    stored = {n: load_file(s.file)[s.name] for n, s in recipe.weights().items()}
    network.load_state_dict(stored, strict=False)
    learning = {n: p for n, p in network.named_parameters() if p.requires_grad}
    optimizer = torch.optim.SGD(learning.values(), lr=rate)
    data, seen = recipe.data("train"), []
    for _ in range(steps):
        total, tokens = torch.zeros(()), 0
        for prompt, answer in (data.parts(index) for index in range(data.num_samples)):
            scores = network(input_ids=torch.tensor([prompt + answer])).logits[0]
            before = scores[len(prompt) - 1 : len(prompt) + len(answer) - 1].log_softmax(-1)
            total = total - before[torch.arange(len(answer)), torch.tensor(answer)].sum()
            tokens += len(answer)
        optimizer.zero_grad()
        (total / tokens).backward()
        optimizer.step()
        seen.append(total.item() / tokens)
    return {name: p.detach() for name, p in learning.items()}, seen


@pytest.mark.parametrize("cases", [slice(1, None, 2), full(slice(None))])
def test_a_token_counts_the_same_wherever_it_is(pool, model, rows, tmp_path, cases):
    # Two steps: what is beside a B of zeros has no gradient in the first.
    options = options_of(model, rows, test_share=0, completions=0)
    expected, seen = plain_loop(options, seed=7, rate=0.1, steps=2)
    plain = {"name": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "clip_norm": None}
    settings = {"steps": 2, "evaluate": {"every": None}, "optimizer": plain}
    settings["schedule"] = {"name": "constant", "warmup": "0 steps"}
    data = load_recipe("lora", options).data("train")
    lengths = [len(data.parts(index)[1]) for index in range(40)]
    assert max(lengths) > 20 * min(lengths)
    packed = {**options, "packing": True, "max_length": 128}
    num_rows = len(load_recipe("lora", packed).data("train"))
    assert num_rows < 40 / 2
    for ranks, micro, given in [
        (1, 40, options),
        (1, 10, options),
        (2, 20, options),
        (2, 2, packed),
        (2, 7, options),
    ][cases]:
        batch = {"global_batch_size": num_rows if given is packed else 40}
        folder = tmp_path / f"{ranks}-{micro}"
        run = lora(folder, given, ranks=ranks, micro_batch_size=micro, **batch, **settings)
        train(pool, run, ranks=ranks)
        assert list(losses(run).values()) == pytest.approx(seen, rel=1e-12)
        found = weights(run)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-12, msg=name)


@pytest.mark.full
def test_a_resumed_run_equals_the_unbroken_one(pool, model, rows, tmp_path):
    options = options_of(model, rows, dropout=0.1)
    given = {"precision": "fp32"}
    unbroken = train(pool, lora(tmp_path / "unbroken", options, ranks=2, **given), ranks=2)
    run = lora(tmp_path / "broken", options, ranks=2, stop_after="2 steps", **given)
    train(pool, run, ranks=2)
    train(pool, change_run(run, stop_after=None), ranks=2, attempt=1)
    assert losses(run) == losses(unbroken)
    assert_same_bits(run, unbroken)


@pytest.mark.full
def test_other_ranks_go_on_with_the_same_rows(pool, model, rows, tmp_path, single):
    options = options_of(model, rows)
    run = lora(tmp_path, options, ranks=2, stop_after="2 steps")
    train(pool, run, ranks=2)
    train(pool, change_run(run, ranks=1, stop_after="2 steps"), ranks=1, attempt=1)
    change_run(run, ranks=2, strategy="fsdp", stop_after=None)
    train(pool, run, ranks=2, attempt=2)
    assert losses(run) == pytest.approx(losses(single["fp64"]), rel=0, abs=FP64)
    for name, tensor in weights(single["fp64"]).items():
        torch.testing.assert_close(weights(run)[name], tensor, rtol=0, atol=FP64)
