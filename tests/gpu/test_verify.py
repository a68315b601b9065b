"""What is recorded on a GPU is what is recorded on the CPU; ranks on GPUs train as one does."""

import torch

from phalanx.engine.model.fingerprint import fingerprints
from phalanx.engine.model.shards import shard_of
from phalanx.engine.training.recording import hash_batch
from tests.ranks.command import phalanx


def test_fingerprints_of_a_gpu_are_those_of_the_cpu():
    tensors = {
        "weight": torch.randn(1500, 1024, dtype=torch.float64),  # more than one chunk
        "half": torch.randn(300, dtype=torch.bfloat16),
        "count": torch.tensor(7),
    }
    on_cpu, on_gpu = (
        fingerprints({name: shard_of(t.to(device), is_first=True) for name, t in tensors.items()})
        for device in ("cpu", "cuda")
    )
    for name, expected in on_cpu.items():
        assert on_gpu[name].distance(expected) <= 1e-13 * expected.norm


def test_batches_have_the_same_hash():
    batch = {"x": torch.randn(4, 3), "y": [torch.arange(4)]}
    on_gpu = {"x": batch["x"].cuda(), "y": [batch["y"][0].cuda()]}
    assert hash_batch(on_gpu, 4) == hash_batch(batch, 4)


def test_two_ranks_that_share_a_gpu_train_as_one(tmp_path):
    code, out, err = phalanx(
        "verify", "digits", "--gpus", "0,0", "devices.backend=gloo", cwd=tmp_path, timeout_s=180
    )
    assert code == 0, err
    assert "(cuda, ddp, fp64)" in out
