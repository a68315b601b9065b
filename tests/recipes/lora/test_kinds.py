"""Other kinds of models, and the guide's layout, trained from the job to the last file."""

import json

import numpy as np
import pytest
import torch
import yaml

from phalanx.engine.checkpoint.recipe_files import CheckpointTensors
from phalanx.engine.rank.worker import run_worker
from phalanx.recipe.loading import load_recipe
from phalanx.recipes import lora as shipped
from tests.cli.command import run_cli
from tests.fixtures.event_lines import read_events
from tests.ranks.runs import FIXTURES, losses, make_run, outcomes
from tests.recipes.lora.logits import trained_network
from tests.recipes.lora.models import write_model, write_rows, write_translator
from tests.recipes.lora.test_media import hearing, seeing, write_image, write_sound, writing_down
from tests.recipes.lora.test_training import options_of


def trained(folder, options, **changes):
    settings = {"recipe": "lora", "precision": "fp32", "steps": 4, "global_batch_size": 8}
    settings |= {"micro_batch_size": 4, "evaluate": {"every": "2 steps"}, **changes}
    run = make_run(folder, ranks=1, options=options, **settings)
    assert run_worker(run.path, handle_signals=False), outcomes(run)
    return run


def events(run, kind):
    return [event.data for event in read_events(run.events) if event.kind == kind]


def assert_files_load(run, auto, options, folder):
    """PEFT says with the adapter what the network says with the checkpoint, and so does a model
    that it is merged into."""
    from peft import PeftModel

    recipe = load_recipe("lora", options)
    tensors = CheckpointTensors(run.checkpoints / "best", is_average=False)
    folder.mkdir()
    recipe.export(tensors, folder, "merged")
    networks = [
        trained_network(run, options, torch.float32, "best"),
        PeftModel.from_pretrained(auto.from_pretrained(options["model"]), run.final_model),
        auto.from_pretrained(folder),
    ]
    batch = recipe.data("train").__getitems__(np.arange(2))
    with torch.no_grad():
        expected, *found = [recipe._predict(network.eval(), batch)[0] for network in networks]
    for logits in found:
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_an_encoder_reads_and_a_decoder_writes(tmp_path, rows):
    from transformers import AutoModelForSeq2SeqLM

    options = options_of(write_translator(tmp_path / "model"), rows)
    run = trained(tmp_path, options)
    curve = list(losses(run).values())
    assert curve[-1] < curve[0]
    assert [data["metrics"]["exact_match"] for data in events(run, "evaluate")] == [0, 0]
    (sample,) = events(run, "samples")[-1]["samples"]
    assert sample["given"] == "order 4?" and sample["wanted"]
    assert events(run, "finding") == []
    assert_files_load(run, AutoModelForSeq2SeqLM, options, tmp_path / "merged")


@pytest.mark.parametrize(
    ("make", "column", "write", "name", "auto"),
    [
        (seeing, "image", write_image, "a.png", "AutoModelForImageTextToText"),
        (hearing, "audio", write_sound, "a.wav", "AutoModelForMultimodalLM"),
        (writing_down, "audio", write_sound, "a.wav", "AutoModelForSpeechSeq2Seq"),
    ],
)
def test_images_and_sounds_go_through_the_processor(tmp_path, make, column, write, name, auto):
    import transformers

    torch.manual_seed(0)
    model, processor = make()
    for part in (model, processor):
        part.save_pretrained(tmp_path / "model")
    write(tmp_path / name)
    rows = [{"prompt": "what?", "response": f"cup {i}", column: name} for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = options_of(str(tmp_path / "model"), str(tmp_path / "rows.jsonl"), r=2)
    run = trained(tmp_path, options)
    curve = list(losses(run).values())
    assert curve[-1] < curve[0]
    assert events(run, "finding") == []
    assert_files_load(run, getattr(transformers, auto), options, tmp_path / "merged")
    found = transformers.AutoProcessor.from_pretrained(run.final_model)
    assert type(found) is type(processor)


def test_the_checkpoints_of_the_guide(tmp_path):
    # 2,500 rows, 3 epochs, 8 x 8 a step.
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    sizes = {"num_attention_heads": 1, "num_key_value_heads": 1, **small}
    model = write_model(tmp_path / "model", template=None, **sizes)
    rows = write_rows(tmp_path / "rows.jsonl", count=2500, longest=4)
    preset = type(FIXTURES)(shipped.__path__[0]) / "presets" / "paper_r64.yaml"
    job = yaml.safe_load(preset.read_text())
    options = job.pop("options") | {"model": model, "data": rows, "targets": ["q_proj"]}
    given = job | {"steps": None, "micro_batch_size": 64, "precision": "fp32"}
    run = trained(tmp_path, options | {"merged": True, "pad_to": 1}, **given)
    assert [data["step"] for data in events(run, "checkpoint")] == [40, 80, 120]
    folders = {path.name for path in run.checkpoints.iterdir() if not path.is_symlink()}
    assert folders == {"checkpoint-40", "checkpoint-80", "checkpoint-120"}
    files = {path.name for path in run.final_model.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files
    assert len(losses(run)) == 120


@pytest.mark.full
@pytest.mark.ranks
def test_verify_finds_one_rank_and_two_alike(model, rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = (f"model={model}", f"data={rows}", "--ranks", "2", "--steps", "2")
    answer = run_cli("verify", "lora", *given, "global_batch_size=8", "completions=0")
    assert answer.code == 0, answer.err
    assert "the same" in answer.out and "not the same" not in answer.out
