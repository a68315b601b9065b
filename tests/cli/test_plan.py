"""`phalanx plan`: the arithmetic, with reasons, on machines this one is not."""

import json
from pathlib import Path

import pytest

from phalanx.cli.options.job import collect_overrides
from phalanx.run.plan_record import without_sections
from tests.cli.command import pretend_machine, run_cli


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


RECIPES = Path(__file__).parents[1] / "fixtures" / "recipes"


def plan(*argv):
    answer = run_cli("plan", *argv, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def values(*argv):
    return {
        name: decision["value"]
        for name, decision in without_sections(plan(*argv)["plan"]).items()
        if isinstance(decision, dict) and "reason" in decision
    }


def test_batch_per_gpu_is_multiplied_once(monkeypatch):
    pretend_machine(monkeypatch, "8xa100")
    got = values("digits", "--batch-size", "8", "--gradient-accumulation", "8", "--gpus", "4")
    assert got["global_batch_size"] == 256
    assert got["micro_batch_size"] == 8
    assert got["accumulation"] == 8
    assert got["gpus"] == [0, 1, 2, 3]
    assert got["precision"] == "bf16"


def test_batch_size_with_accumulation_says_that_it_is_per_gpu(monkeypatch):
    pretend_machine(monkeypatch, "8xa100")
    per_gpu = ("--batch-size", "8", "--gradient-accumulation", "8")
    for gpus, said in (
        ("0,", "8 x 8 x 1 GPU = 64 is the global batch"),
        ("0,1,2,3", "8 x 8 x 4 GPUs = 256 is the global batch"),
        ("all", "8 x 8 x the number of GPUs"),
    ):
        _, (note,) = collect_overrides({"gpus": gpus, "batch_size": 8, "gradient_accumulation": 8})
        assert said in note.what
    told = plan("digits", *per_gpu, "--gpus", "0,1,2,3", "--fp16")
    assert "batch-per-gpu" in [finding["slug"] for finding in told["findings"]]
    assert told["plan"]["batch"]["global_batch_size"]["value"] == 256
    assert told["plan"]["numerics"]["precision"]["value"] == "fp16"


def test_batch_size_alone_is_global(monkeypatch):
    pretend_machine(monkeypatch, "8xa100")
    got = values("digits", "--batch-size", "64")
    assert (got["global_batch_size"], got["micro_batch_size"], got["ranks"]) == (64, 8, 8)


def test_old_cards_get_fp16(monkeypatch):
    pretend_machine(monkeypatch, "16x2080")
    got = values("digits")
    assert (got["precision"], got["ranks"], got["backend"]) == ("fp16", 16, "nccl")


def test_mac_gets_one_rank_and_no_pinned_memory(monkeypatch):
    pretend_machine(monkeypatch, "mps")
    got = values("digits")
    assert (got["device"], got["ranks"], got["workers"]) == ("mps", 1, 0)
    assert got["pin_memory"] is False


def test_steps_per_epoch_table_follows_batch_per_gpu(monkeypatch):
    pretend_machine(monkeypatch, "8xa100")
    rows = plan("digits", "global_batch_size=null", "batch_per_gpu=4")["ranks"]
    table = {row["ranks"]: row["steps_per_epoch"] for row in rows}
    assert table == {1: 360, 2: 180, 4: 90, 8: 45, 16: 23}  # 1,437 samples at 4, 8, 16, 32, 64


def test_every_line_has_its_reason():
    answer = run_cli("plan", "digits")
    assert answer.code == 0
    assert "global_batch_size = 64" in answer.out
    assert "25 epochs x 23 steps = 575" in answer.out
    record = without_sections(plan("digits")["plan"])
    reasons = [d["reason"] for d in record.values() if isinstance(d, dict) and "reason" in d]
    assert len(reasons) > 20
    assert all(reasons)


def test_options_take_back_what_the_file_says_the_other_way(tmp_path):
    job = "recipe: digits\nsteps: 7\nbatch_per_gpu: 4\ndevices: {gpus: all}\n"
    (tmp_path / "job.yaml").write_text(job)
    got = values("job.yaml", "--epochs", "2", "--batch-size", "32", "--cpu", "2")
    assert (got["total_steps"], got["global_batch_size"], got["ranks"]) == (2 * 45, 32, 2)


def test_gpu_ids_one_id_and_counts(monkeypatch):
    pretend_machine(monkeypatch, "8xa100")
    assert values("digits", "--gpus", "0,2,3")["gpus"] == [0, 2, 3]
    assert values("digits", "--gpus", "5,")["gpus"] == [5]
    assert values("digits", "--gpus", "3")["gpus"] == [0, 1, 2]
    assert values("digits", "--gpus", "all")["ranks"] == 8


def test_forced_precision_the_card_cannot_do_is_a_finding(monkeypatch):
    pretend_machine(monkeypatch, "16x2080")
    answer = run_cli("plan", "digits", "--precision", "bf16")
    assert answer.code == 2
    assert "compute capability 7.5" in answer.err


def test_dry_run_shows_the_plan_and_creates_nothing(tmp_path):
    answer = run_cli("train", "digits", "--dry-run")
    assert answer.code == 0
    assert "25 epochs x 23 steps = 575" in answer.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("10", "minutes"), ("10 minutes",)])
def test_an_interval_is_one_word_or_two(words):
    got = values("digits", "--save-every", *words)
    assert got["save_every_s"] == 600
    assert got["save_every_steps"] is None


def test_two_strategies_on_the_command_line_are_refused():
    for argv in (("--strategy", "ddp"), ("--deepspeed", "ds.json")):
        answer = run_cli("plan", "digits", "--fsdp", *argv)
        assert answer.code == 2
        assert "error[two-strategies]" in answer.err


def test_two_precisions_on_the_command_line_are_refused():
    for argv in (("--bf16",), ("--precision", "fp32")):
        answer = run_cli("plan", "digits", "--fp16", *argv)
        assert answer.code == 2
        assert "error[two-precisions]" in answer.err


def test_a_preset_that_is_not_there_is_a_finding():
    for argv in (("--config", "paper"), ("preset=paper",)):
        answer = run_cli("plan", "digits", *argv)
        assert answer.code == 2
        assert "error[unknown-preset]: there is no preset `paper`" in answer.err


def test_cache_alone_means_ram(monkeypatch):
    pretend_machine(monkeypatch, "cpu")
    kept = [f"{RECIPES / 'kept.py'}:Kept", "--epochs", "1", "--batch-size", "10"]
    # The machine has 55,082,955,571 bytes free.
    answer = run_cli("plan", "--cache", *kept)
    assert "keeps all 50 samples and 13 of the test split: what load(index)" in " ".join(
        answer.out.split()
    )
    got = values("--cache", *kept), values(*kept, "--cache", "off"), values(*kept)
    assert [choice["cache"] for choice in got] == ["ram", "off", "off"]
    assert values("digits", "--cache")["cache"] == "off"  # arrays in memory


def test_cache_of_what_is_random_is_refused(monkeypatch):
    pretend_machine(monkeypatch, "cpu")
    parity = f"{RECIPES / 'parity.py'}:Parity"
    answer = run_cli("plan", parity, "--epochs", "1", "--batch-size", "10", "--cache")
    assert answer.code == 2
    assert "error[cache-needs-load]: Rows augments its samples by keys" in answer.err
