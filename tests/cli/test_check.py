"""`phalanx check`: one screen, JSON, exit codes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from phalanx.cli.check import check
from phalanx.machine import Machine, probe_machine

FIXTURES = Path(__file__).parents[1] / "fixtures" / "machines"


def load(name):
    return Machine.from_json(json.loads((FIXTURES / f"{name}.json").read_text()))


@pytest.fixture
def run(monkeypatch):
    """Run the command on a given machine and return its exit code."""
    app = typer.Typer()
    app.callback()(lambda: None)  # a lone command would take the place of the group
    app.command("check")(check)

    def run(*argv, machine=None):
        if machine is not None:
            monkeypatch.setattr("phalanx.machine.probe_machine", lambda output: machine)
        return app(args=["check", *argv], standalone_mode=False)

    return run


@pytest.mark.parametrize("name", ["cpu", "1xt4", "2x4090", "8xa100", "16x2080", "mps"])
def test_the_screen_fits_80_columns_and_says_it_all(run, capsys, name):
    machine = load(name)
    assert run(machine=machine) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert max(len(line.rstrip()) for line in lines if not line.startswith("cpu")) <= 80
    assert len(lines) <= 40
    assert machine.host in shown
    assert machine.torch.version in shown
    for gpu in machine.gpus:
        assert gpu.name.removeprefix("NVIDIA ") in shown
    assert ("links:" in shown) == (len(machine.gpus) > 1)


def test_findings_go_to_stderr_with_what_why_fix(run, capsys):
    assert run(machine=load("2x4090")) == 0
    said = capsys.readouterr().err
    assert "warning[open-files-low]: a process may open 1024 files" in said
    assert "  why: " in said
    assert "  fix: `ulimit -n 65535`" in said


def test_unequal_links_are_a_matrix(run, capsys):
    machine = load("8xa100")
    links = (replace(machine.links[0], nvlink_lanes=0), *machine.links[1:])
    run(machine=replace(machine, links=links))
    assert "0    X  PXB NV12 NV12" in capsys.readouterr().out


def test_hidden_lost_and_used_gpus_are_marked(run, capsys):
    machine = load("2x4090")
    first = replace(machine.gpus[0], cuda_index=None)
    second = replace(machine.gpus[1], error="GPU is lost", cuda_index=None)
    run(machine=replace(machine, gpus=(first, second), cuda_visible_devices=""))
    shown = capsys.readouterr().out
    assert "hidden; Xorg 2311" in shown
    assert "lost" in shown
    assert "0 of 2 GPUs visible (CUDA_VISIBLE_DEVICES=)" in shown


def test_a_machine_that_cannot_train_exits_with_3(run, capsys):
    broken = replace(load("8xa100"), torch=None, torch_error="No module named 'torch'")
    assert run(machine=broken) == 3
    assert "error[torch-missing]" in capsys.readouterr().err


def test_json_is_the_machine_and_its_findings_and_nothing_else(run, capsys):
    machine = load("2x4090")
    assert run("--json", machine=machine) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert Machine.from_json(data["machine"]) == machine
    assert {f["slug"] for f in data["findings"]} == {"open-files-low", "p2p-missing"}
    assert captured.err == ""


def test_a_file_in_the_way_of_the_output_exits_with_3(run, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "phalanx.machine.probe_machine", lambda output: probe_machine(output, with_torch=False)
    )
    (tmp_path / "file").write_text("")
    assert run("--output", str(tmp_path / "file")) == 3
    assert "error[output-not-writable]" in capsys.readouterr().err


def test_this_machine(run, capsys, tmp_path):
    assert run("--output", str(tmp_path), "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["machine"]["torch"]["version"]
