"""What stands between a job and its model is said before anything is trained, all at once."""

import json

import pytest

from phalanx.tracing.trace import trace_recipe
from tests.ranks.command import phalanx
from tests.recipes.lora.models import write_model, write_rows
from tests.recipes.lora.test_training import options_of

# Llama-2-7B with 4 of its 32 blocks.
LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
}
FROZEN = 2 * 32000 * 4096 + 4096 + 4 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096)
LEARNING = 4 * 16 * (4 * (4096 + 4096) + 3 * (4096 + 11008))  # r = 16, on all projections


def found(options, **more):
    """The trace, what is wrong, and what is wrong with the weights alone."""
    trace, findings = trace_recipe("lora", options, **more)
    about = [] if trace is None else list(trace.weights_findings)
    return trace, findings, about


def test_a_model_that_is_not_there_and_rows_that_are_not(tmp_path):
    options = options_of(str(tmp_path / "none"), str(tmp_path / "none.jsonl"))
    trace, findings, _ = found(options)
    assert trace is None
    assert [f.slug for f in findings] == ["missing-model", "data-missing"]
    assert str(tmp_path / "none") in findings[0].why


def test_layers_columns_and_rows_are_all_named_at_once(model, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "responses": "b"}\n')
    options = options_of(model, str(rows), targets=["q_proj", "qkv"], response="response")
    trace, findings, _ = found(options)
    assert trace is None
    slugs = [f.slug for f in findings]
    assert slugs[0] == "unknown-targets" and len(slugs) > 1
    assert "qkv" in findings[0].what and "k_proj" in findings[0].why
    assert "responses" in " ".join(f.what + f.why + f.fix for f in findings[1:])


@pytest.mark.parametrize(
    ("file", "words"),
    [(None, "no weights"), ("pytorch_model.bin", "pickled weights are not opened")],
)
def test_a_model_without_safetensors_can_be_planned(tmp_path, rows, file, words):
    model = write_model(tmp_path / "model", weights=False)
    if file:
        (tmp_path / "model" / file).write_bytes(b"\x80")
    trace, findings, about = found(
        options_of(model, rows), precisions=("bf16",) if file else ("bf16", "bf16+compiled")
    )
    assert findings == []
    assert trace.trainable_parameters > 0
    assert trace.activations_unknown is trace.activations_sampled is trace.compiled_unknown is None
    (finding,) = about
    assert finding.slug == "missing-weights" and words in finding.why


def test_a_kind_of_model_that_nobody_knows(tmp_path, rows):
    (tmp_path / "config.json").write_text('{"model_type": "quux"}')
    _, findings, _ = found(options_of(str(tmp_path), rows))
    assert [f.slug for f in findings] == ["model-kind"] and "quux" in findings[0].why


def test_a_gated_model_says_how_to_get_in(monkeypatch, rows):
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError

    def refuse(model, *, local_files_only=False, **_):
        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        response = type("Response", (), {"headers": {}, "request": None, "status_code": 403})()
        raise GatedRepoError("403", response=response)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    _, (finding,), _ = found(options_of("org/gated", rows))
    assert finding.slug == "missing-model" and "hf auth login" in finding.fix
    assert "https://huggingface.co/org/gated" in finding.why


@pytest.mark.full
@pytest.mark.ranks
def test_the_command_says_what_is_wrong_without_a_traceback(model, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "responses": "b"}\n' * 3)
    # Nobody listens there: the hub cannot be reached, and that is said at once.
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(tmp_path / "hub")}
    given = ("data=rows.jsonl", "response=response", "--cpu", "1")
    code, out, err = phalanx("train", "lora", "model=org/none", *given, cwd=tmp_path, env=env)
    assert code == 2 and "error[missing-model]" in err and "hf download org/none" in err
    code, out, err = phalanx("train", "lora", f"model={model}", *given, cwd=tmp_path)
    assert code == 2 and "did you mean `responses`" in err
    assert "Traceback" not in out + err
    assert not (tmp_path / "runs").exists()


@pytest.mark.ranks
def test_a_large_model_is_planned_from_its_config(tmp_path, rows):
    write_model(tmp_path / "big", weights=False, **LLAMA)
    machine = ("--machine", "4x A100-80", "--json", "compile=off")
    code, out, err = phalanx("plan", "lora", "model=big", f"data={rows}", *machine, cwd=tmp_path)
    assert code == 0 and "missing-weights" in err + out
    plan = json.loads(out)["plan"]
    assert plan["predicted"]["parameters"]["value"] == FROZEN + LEARNING
    assert plan["numerics"]["frozen_precision"]["value"] == "compute"
    held = 2 * FROZEN + 4 * 4 * LEARNING
    assert held < plan["predicted"]["memory_bytes"]["value"] < held + 2**32


def test_weights_are_fetched_where_only_the_config_was(tmp_path, monkeypatch):
    """A plan has fetched the config; training fetches the rest, and asks the hub once."""
    import huggingface_hub

    from phalanx.recipes.lora.base import find_base, weight_findings

    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "config.json").write_text("{}", encoding="utf-8")
    asked = []

    def snapshot(name, *, allow_patterns, local_files_only=False):
        if not local_files_only:
            asked.append(name)
            (folder / "model.safetensors").write_bytes(b"")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    base = find_base("some/model")
    assert asked == []
    assert weight_findings(base) == []
    assert weight_findings(base) == []
    assert asked == ["some/model"]


@pytest.mark.full
@pytest.mark.parametrize("machine", ["A100-80", "A100-40", "RTX 4090"])
def test_a_plan_for_a_large_model_leaves_what_the_process_may_hold(tmp_path, machine):
    model = write_model(tmp_path / "model", weights=False, **LLAMA | {"num_hidden_layers": 32})
    rows = write_rows(tmp_path / "rows.jsonl", count=2500, longest=400)
    given = ("preset=paper_r64", f"model={model}", f"data={rows}", "--machine", machine, "--json")
    code, out, err = phalanx("plan", "lora", *given, cwd=tmp_path)
    assert code == 0, err
    plan = json.loads(out)["plan"]
    assert 1.15 * plan["predicted"]["process_bytes"]["value"] <= plan["devices"]["device_bytes"]
