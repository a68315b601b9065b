"""`phalanx plan` for machines that are not at hand, `--why` and `--sweep`."""

import json
import re
from dataclasses import replace
from functools import cache

import pytest

import phalanx
from phalanx.codec import to_json
from phalanx.errors import ExitCode, UserError
from phalanx.machine import cannot_train
from phalanx.prepare import plan as preparing
from phalanx.prepare.open_run import open_run
from phalanx.prepare.trace import trace_recipe
from phalanx.run.plan_record import without_sections
from phalanx.verbs import sweep as sweeping
from tests.cli.command import MACHINES, fixture_machine, pretend_machine, run_cli
from tests.unit.planner.memory.test_fit import sizes

pytestmark = pytest.mark.asks  # a fake answers


@cache
def digits():
    """What the recipe answers, asked once: it takes a process with torch in it."""
    trace, findings = trace_recipe("digits", {})
    assert trace is not None, findings
    return trace


@pytest.fixture(autouse=True)
def asked(tmp_path, monkeypatch):
    """In an empty folder, with the recipe's remembered answer; gives the options it is asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preparing, "probe_machine", _never)
    given = []

    def ask(spec, options, precisions=(), **how):
        assert spec == "digits"
        given.append(options)
        return replace(digits(), options=options), []

    monkeypatch.setattr(preparing, "trace_recipe", ask)
    monkeypatch.setattr(sweeping, "trace_recipe", ask)
    return given


def _never(*args, **kwargs):
    raise AssertionError("this machine was asked about another one")


def answer(*argv):
    done = run_cli("plan", "digits", *argv, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def choices(*argv):
    plan = without_sections(answer(*argv)["plan"])
    return {name: d["value"] for name, d in plan.items() if isinstance(d, dict) and "reason" in d}


@pytest.mark.parametrize(
    ("machine", "ranks", "precision", "strategy"),
    [
        ("16x RTX 2080", 16, "fp16", "ddp"),
        ("2x 4090", 2, "bf16", "ddp"),
        ("8x A100-80", 8, "bf16", "ddp"),
        ("1x V100-32", 1, "fp16", "single"),
        ("1x H100", 1, "bf16", "single"),
        ("M3 Max, 64 GB", 1, "bf16", "single"),
    ],
)
def test_the_machines_of_the_guides(machine, ranks, precision, strategy):
    got = choices("--machine", machine)
    assert (got["ranks"], got["precision"], got["strategy"]) == (ranks, precision, strategy)


def test_the_plan_says_on_top_that_it_is_for_another_machine():
    done = run_cli("plan", "digits", "--machine", "16x RTX 2080")
    assert done.code == 0
    first, second, third, *_ = done.out.splitlines()
    assert first == "for another machine: 16x RTX 2080"
    assert "nothing was measured there" in second
    assert "128 CPU cores (8 per GPU)" in third
    # No check of this machine, which has no GPU.
    assert re.findall(r"^\w+\[(.*)\]", done.err, re.M) == ["slower-together"]


def test_the_table_goes_up_to_that_machines_gpus():
    def counts(machine):
        return [row["ranks"] for row in answer("--machine", machine)["ranks"]]

    assert counts("2x 4090") == [1, 2]
    assert counts("12x RTX 3090") == [1, 2, 4, 8, 12]
    assert counts("2 nodes x 8x A100-80") == [1, 2, 4, 8, 16]


def test_nodes_multiply_ranks_and_share_nothing_of_the_host():
    got = choices("--machine", "2 nodes x 4x A100-80, 200 Gb/s", "--strategy", "fsdp")
    assert (got["ranks"], got["gpus"], got["shard_ranks"]) == (8, [0, 1, 2, 3], 4)
    assert got["threads"] == 4  # 32 cores over the 4 ranks of a node, at most 4
    assert choices("--machine", "2 nodes x 4x A100-80, 8 cores")["threads"] == 2


def test_what_is_installed_here_says_nothing_about_another_machine():
    assert choices("--machine", "4x A100-80", "strategy=deepspeed")["strategy"] == "deepspeed"


def test_a_file_of_a_machine_and_the_plan_that_holds_one(tmp_path):
    written = answer("--machine", "4x L40S, 64 cores, 256 GB")
    assert written["is_elsewhere"] is True
    written["machine"]["gpus"][0]["name"] = "My Card"
    (tmp_path / "mine.json").write_text(json.dumps(written))
    again = answer("--machine", "mine.json")
    assert again["machine"]["gpus"][0]["name"] == "My Card"
    got = choices("--machine", str(MACHINES / "16x2080.json"))
    assert (got["ranks"], got["precision"]) == (16, "fp16")


def test_what_was_wrong_there_once_does_not_stop_a_plan(tmp_path):
    machine = fixture_machine("2x4090")
    full = replace(machine, output=replace(machine.output, free_bytes=0, writable=False))
    assert cannot_train(full)
    (tmp_path / "machine.json").write_text(json.dumps(to_json(full)))
    assert choices("--machine", "machine.json")["ranks"] == 2


def test_gpus_that_machine_has_not():
    done = run_cli("plan", "digits", "--machine", "2x 4090", "--gpus", "4")
    assert done.code == 2
    assert "asks for 4 GPUs, `2x 4090` has 2" in done.err


@pytest.mark.parametrize(
    ("machine", "slug"),
    [("8x RTX 4091", "unknown-gpu"), ("8x A100", "which-gpu"), ("8x H100, fast", "machine-words")],
)
def test_a_wrong_machine_is_a_finding(machine, slug, asked):
    done = run_cli("plan", "digits", "--machine", machine)
    assert done.code == 2
    assert f"error[{slug}]" in done.err
    assert asked == []  # before the recipe is looked at


@pytest.mark.parametrize(
    ("machine", "slug"), [("2 nodes x 8x H100", "several-nodes"), ("8x H100", "other-machine")]
)
def test_a_plan_for_elsewhere_is_not_trained(machine, slug, tmp_path):
    prepared = preparing.prepare(
        "digits", machine=preparing.other_machine(machine), is_elsewhere=True
    )
    with pytest.raises(UserError) as error, open_run(prepared):
        pass
    assert [finding.slug for finding in error.value.findings] == [slug]
    assert list(tmp_path.iterdir()) == []


def test_from_python():
    assert phalanx.plan("digits", machine="8x A100-80", epochs=2).devices.ranks.value == 8


def test_why_gives_one_choice_and_the_keys_behind_it():
    got = answer("--machine", "2x 4090", "--why", "global batch size")
    assert got["choices"] == {
        "global_batch_size": {"value": 64, "reason": "global_batch_size = 64"}
    }
    assert got["keys"]["global_batch_size"]["value"] == 64
    assert "Samples per optimizer step" in got["keys"]["global_batch_size"]["meaning"]
    shown = run_cli("plan", "digits", "--machine", "2x 4090", "--why", "precision").out
    assert "bf16 tensor cores" in " ".join(shown.split())


def test_why_takes_a_job_key_too():
    got = answer("--machine", "2x 4090", "--why", "checkpoint.every")
    assert list(got["choices"]) == ["save_every_steps", "save_every_s", "save_share"]


def test_why_of_an_unknown_choice():
    done = run_cli("plan", "digits", "--machine", "2x 4090", "--why", "micro_batch")
    assert done.code == 2
    assert "did you mean `micro_batch_size`?" in done.err


def test_sweep_over_machines_asks_the_recipe_once(asked):
    got = answer("--sweep", "machine=RTX 3090,A100-40,A100-80,V100-32,A100-90")
    rows = {row["value"]: row for row in got["rows"]}
    assert [row["precision"] for row in rows.values()] == ["bf16", "bf16", "bf16", "fp16", None]
    assert rows["A100-80"]["device_bytes"] == 80 << 30
    assert rows["A100-80"]["memory_bytes"] > 0
    assert rows["A100-90"]["findings"][0]["slug"] == "unknown-gpu"
    assert len(asked) == 1


def test_sweep_over_a_key_and_over_an_option(asked):
    where = ("--machine", "4x L40S")
    got = answer(*where, "--sweep", "batch_size=32,64,many")
    assert [row["steps_per_epoch"] for row in got["rows"]] == [45, 23, None]
    assert got["rows"][2]["findings"][0]["slug"] == "wrong-value"
    assert len(asked) == 1
    asked.clear()
    answer(*where, "--sweep", "width=8,16,8")
    assert [options["width"] for options in asked] == [8, 16]


def test_sweep_shows_rows_and_all_that_is_wrong():
    done = run_cli(
        "plan", "digits", "--sweep", "machine=2 nodes x 8x H100, 400 Gb/s; 8x H300; 4x 4090"
    )
    assert done.code == 0
    words = [line.split() for line in done.out.splitlines()]
    assert ["4x", "4090", "4", "ddp", "bf16", "64", "16", "x", "1", "0.003"] in [
        line[:10] for line in words
    ]
    assert "8x H300: error[unknown-gpu]" in done.out
    assert "error[unknown-gpu]" in done.err


@pytest.mark.parametrize(
    ("argv", "slug"),
    [
        (["--sweep", "batch_size"], "sweep-words"),
        (["--sweep", "=1,2"], "sweep-words"),
        (["--sweep", "seed=1,2", "--why", "lr"], "two-questions"),
        (["--sweep", "machine=T4,L4", "--machine", "L40S"], "two-machines"),
        (["--sweep", "machine=8x H300,9x H300"], "unknown-gpu"),  # all are wrong: exit code 2
    ],
)
def test_a_wrong_sweep(argv, slug):
    done = run_cli("plan", "digits", *argv)
    assert done.code == 2
    assert f"error[{slug}]" in done.err


@pytest.mark.parametrize("command", ["plan", "train"])
def test_a_job_that_cannot_run_is_refused_with_what_would(command, tmp_path, monkeypatch):
    large = replace(digits(), **sizes(30))
    monkeypatch.setattr(preparing, "trace_recipe", lambda *asked, **how: (large, []))
    # The host memory of a machine that is only named is not enough to keep the state.
    where, fix = ["--machine", "2x RTX 4090"], "the same job on 16 GPUs, which needs 12.8 GiB"
    if command == "train":
        where, fix = [], "strategy=fsdp fsdp.offload=true, which needs 5.3 GiB of 24.0 GiB"
        pretend_machine(monkeypatch, "2x4090")
    done = run_cli(command, "digits", "--batch-size", "8", "fsdp.offload=false", *where)
    assert done.code == ExitCode.USAGE
    for text in ("error[does-not-fit]: ", "65.3 GiB", "24.0 GiB", "optimizer 30.0 GiB"):
        assert text in done.err
    assert f"fix: {fix}" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_second_plan_is_made_of_the_first_answer_unless_it_is_to_be_fresh(asked):
    machine = ("--machine", "8x A100-80")
    slugs = [[f["slug"] for f in answer(*machine, *more)["findings"]] for more in ((), ())]
    assert ["trace-remembered" in found for found in slugs] == [False, True]
    assert len(asked) == 1
    assert "trace-remembered" not in [f["slug"] for f in answer(*machine, "--fresh")["findings"]]
    assert len(asked) == 2


def test_the_speed_up_table_has_efficiency_and_every_time_an_interval():
    got = answer("--machine", "16x A100-80")
    rows = got["ranks"]
    assert [row["ranks"] for row in rows] == [1, 2, 4, 8, 16]
    assert rows[0]["speedup"] == rows[0]["efficiency"] == 1
    for row in rows:
        assert row["efficiency"] == pytest.approx(row["speedup"] / row["ranks"])
        assert row["speedup"] == pytest.approx(
            row["samples_per_s"] / rows[0]["samples_per_s"], abs=0.01
        )
    plan, forecast = got["plan"], got["plan"]["predicted"]["forecast"]
    assert rows[-1]["step_s"] == forecast["step_s"]
    assert forecast["step_low_s"] < forecast["step_s"] < forecast["step_high_s"]
    for name in ("step_s", "samples_per_s", "duration_s"):
        assert " to " in plan["predicted"][name]["reason"], name
    shown = run_cli("plan", "digits", "--machine", "16x A100-80").out
    assert "efficiency" in shown and "100 %" in shown


def test_a_price_gives_a_cost_and_its_interval():
    where = ("--machine", "8x A100-80", "epochs=100000")
    got = answer(*where, "--price", "2")
    hours = got["plan"]["predicted"]["forecast"]["gpu_hours"]
    assert got["cost"] == pytest.approx(2 * hours, abs=0.01) and (got["cost"] > 0)
    assert answer(*where)["cost"] is None
    (line,) = (
        line
        for line in run_cli("plan", "digits", *where, "--price", "2").out.splitlines()
        if line.startswith(" cost")
    )
    assert "GPU hours x 2;" in line and " to " in line


def test_what_was_considered_says_why_not():
    others = answer("--machine", "8x A100-80")["plan"]["predicted"]["alternatives"]
    assert {other["choice"].split("=")[0] for other in others} == {"strategy", "micro_batch_size"}
    assert all(other["why_not"] for other in others)
    assert "why not" in run_cli("plan", "digits", "--machine", "8x A100-80").out
