"""The wheel that is written without a build tool, and which variables go along."""

import csv
import hashlib
import io
import re
import zipfile
from base64 import urlsafe_b64encode
from dataclasses import replace
from importlib.metadata import version

from phalanx.places.remote.answers import Look
from phalanx.places.remote.checks import _gpu_rows, _versions
from phalanx.places.remote.environment import write_wheel
from phalanx.places.remote.places import make_place
from phalanx.places.remote.variables import variable_findings, variables_for, word_findings


def test_the_wheel_is_whole_and_the_same_each_time(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    wheel = write_wheel(first)
    assert re.fullmatch(r"phalanx-[0-9.]+\+[0-9a-f]{8}-py3-none-any\.whl", wheel.name)
    assert write_wheel(second).read_bytes() == wheel.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = next(name.partition("/")[0] for name in names if name.endswith("/RECORD"))
        version = wheel.name.split("-")[1]
        assert f"\nVersion: {version}\n" in archive.read(f"{info}/METADATA").decode()
        assert "phalanx/places/remote/far_runs.py" in names
        assert "phalanx/recipes/digits/job.yaml" in names
        assert "phalanx.cli.main:main" in archive.read(f"{info}/entry_points.txt").decode()
        rows = list(csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode())))
        assert {row[0] for row in rows} == names
        for name, digest, size in rows:
            if name != f"{info}/RECORD":
                content = archive.read(name)
                expected = urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
                assert (digest, int(size)) == (f"sha256={expected}", len(content))


def test_what_tunes_ranks_and_trackers_goes_along():
    here = {
        "NCCL_DEBUG": "INFO",
        "NCCL_TOPO_DUMP_DIR": "/x",
        "GLOO_SOCKET_IFNAME": "eth0",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "TORCH_HOME": "/home/me/torch",
        "WANDB_API_KEY": "k" * 40,
        "WANDB_DIR": "/home/me/wandb",
        "HF_TOKEN": "t",
        "HF_HOME": "/home/me/hf",
        "AWS_SECRET_ACCESS_KEY": "s",
        "PATH": "/bin",
        "MINE": "1",
    }
    usual = ["GLOO_SOCKET_IFNAME", "HF_TOKEN", "NCCL_DEBUG", "NCCL_TOPO_DUMP_DIR"]
    usual += ["TORCH_NCCL_BLOCKING_WAIT", "WANDB_API_KEY"]
    assert list(variables_for(here)) == usual
    assert "MINE" in variables_for(here, ["MINE"])
    assert [f.slug for f in variable_findings(here, ["MINE", "OTHER"])] == ["remote-variable"]


def test_no_secret_and_no_line_break_stands_in_a_command_line():
    here = {"WANDB_API_KEY": "k" * 40}
    words = ["job.yaml", f"note={'k' * 40}", "a\nb"]
    findings = list(word_findings(words, here))
    assert [finding.slug for finding in findings] == ["remote-secret", "remote-word"]
    assert "k" * 40 not in findings[0].what + findings[0].why + findings[0].fix


def test_another_version_over_there_is_said():
    mine = make_place("lab", "gpu", python="/env/bin/python")
    (differs,) = _versions(mine, {"phalanx": "9.9.9", "numpy": "1"})
    assert (differs.slug, differs.severity) == ("remote-version", "warning")
    assert "phalanx is 9.9.9 on gpu and " in differs.what
    (made,) = _versions(make_place("lab", "gpu"), {"phalanx": "9.9.9"})
    assert made.severity == "note"  # `remote train` brings this one
    here = version("phalanx")
    assert not list(_versions(mine, {"phalanx": f"{here}+12345678"}))


def test_gpus_are_shown_before_there_is_a_phalanx_to_ask():
    seen = Look(
        path="/p",
        is_writable=True,
        nearest="/",
        free_bytes=1,
        memory_bytes=None,
        cores=1,
        system="Linux",
        host="gpu",
        python="3.12",
        has_venv=True,
        driver=[["580.65"]],
        gpus=[
            ["0", "NVIDIA A100-SXM4-80GB", "81920", "40960", "8.0"],
            ["1", "Tesla V100-SXM2-32GB", "32768", "32768", "7.0"],
            ["2", "Odd", "[N/A]", "[N/A]", "[N/A]"],
        ],
        packages={},
        missing=[],
    )
    assert list(_gpu_rows(seen)) == [
        ("driver", "NVIDIA 580.65"),
        ("GPU 0", "NVIDIA A100-SXM4-80GB: 40.0 of 80.0 GiB free, compute 8.0, bf16, fp16"),
        ("GPU 1", "Tesla V100-SXM2-32GB: 32.0 of 32.0 GiB free, compute 7.0, fp16, no bf16"),
        ("GPU 2", "Odd: ? of ? GiB free, compute [N/A], precisions unknown"),
    ]
    without = replace(seen, driver=[], gpus=[])
    assert list(_gpu_rows(without)) == [("driver", "no NVIDIA driver answers")]
