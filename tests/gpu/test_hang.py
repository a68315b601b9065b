"""Ranks on a GPU that hang are named and start again. Two ranks share the card over gloo; with NCCL
each would need one of its own."""

from pathlib import Path

import pytest

from tests.faults.trial import HURT, findings, said, write_job
from tests.ranks.command import latest, phalanx


@pytest.mark.parametrize(
    ("devices", "rank"), [("gpus: [0, 0], backend: gloo", 1), ("gpus: 1", 0)], ids=["two", "one"]
)
def test_a_hung_rank_on_a_gpu_is_named_and_survived(tmp_path, devices, rank):
    write_job(
        tmp_path,
        hurt="'loop kill'",
        hurt_rank=rank,
        cast=True,
        # As it is written: a CUDA graph calls no Python, and compiling an endless loop is one.
        more="hang: {after_s: 5}\nfast: off",
    )
    text = (tmp_path / "job.yaml").read_text().replace("precision: fp64", "precision: fp32")
    (tmp_path / "job.yaml").write_text(text.replace("{cpu: 4}", f"{{{devices}}}"))
    code, _, err = phalanx("train", "job.yaml", cwd=tmp_path, timeout_s=400)
    assert code == 0, err
    run = latest(tmp_path)
    (hang,) = said(run, "hang")
    assert hang.data["rank"] == rank, hang.data
    assert f"{Path(HURT.rpartition(':')[0])}:" in hang.data["line"]
    words = [finding["what"] for slug, finding in findings(run) if slug == "restarted"]
    assert f"rank {rank} hangs" in words[0]
    assert f"rank {rank} was killed by SIGKILL" in words[1]
