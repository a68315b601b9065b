"""Which exceptions mean out of memory, and what their messages say."""

import pytest
import torch

from phalanx.codec import to_json
from phalanx.engine.process.failure import describe_failure
from phalanx.engine.process.out_of_memory import during, find_shortage, place_of
from phalanx.errors import Finding, UserError, format_bytes
from phalanx.run.directory import RunDirectory

CUDA = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of "
    "which 19.50 GiB is free. Including non-PyTorch memory, this process has 120.30 GiB memory in "
    "use. Of the allocated memory 95.00 GiB is allocated by PyTorch, and 24.50 GiB is reserved by "
    "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
MPS = (
    "MPS backend out of memory (MPS allocated: 18.05 GB, other allocations: 2.00 MB, max allowed: "
    "18.13 GB). Tried to allocate 256.00 MB on private pool. Use "
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations."
)
GIB = 2**30


def test_a_cuda_message_is_read():
    found = find_shortage(torch.OutOfMemoryError(CUDA), "cuda:0")
    assert to_json(found) == {
        "device": "cuda:0",
        "tried_bytes": 20 * GIB,
        "free_bytes": round(19.5 * GIB),
        "total_bytes": round(139.81 * GIB),
        "idle_bytes": round(24.5 * GIB),
    }


def test_an_mps_message_is_read():
    found = find_shortage(RuntimeError(MPS), "mps:0")
    assert (found.device, found.tried_bytes) == ("mps:0", 256 * 2**20)
    assert (found.free_bytes, found.total_bytes) == (None, round(18.13 * GIB))


def test_the_cpu_allocator_of_this_torch_is_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    found = find_shortage(caught.value, "cuda:0")
    assert (found.device, found.tried_bytes) == ("cpu", 4 * 2**50)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        torch.OutOfMemoryError("a message of another version"),
    ],
    ids=repr,
)
def test_without_figures_it_is_still_known(error):
    assert find_shortage(error, "cuda:1").tried_bytes is None


def test_what_it_was_raised_from_counts():
    error = ValueError("the batch is wrong")
    error.__cause__ = torch.OutOfMemoryError(CUDA)
    assert find_shortage(error, "cuda:0").tried_bytes == 20 * GIB


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Connection closed by peer [127.0.0.1]:4321"),
        RuntimeError("shape mismatch"),
        ValueError(CUDA),
        KeyError("memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_not(error):
    assert find_shortage(error, "cpu") is None


def test_the_innermost_phase_counts_and_the_step_is_added():
    with pytest.raises(MemoryError) as caught, during("step", lambda: 7), during("evaluate"):
        raise MemoryError
    assert place_of(caught.value) == ("evaluate", 7)
    assert place_of(MemoryError()) == ("start", None)


def test_the_outcome_of_a_rank_that_ran_out_of_memory(tmp_path, capsys):
    error = torch.OutOfMemoryError(CUDA)
    error.phalanx_phase, error.phalanx_step = "step", 7
    end = describe_failure(error, rank=1, device="cuda:1", run=RunDirectory(tmp_path))
    assert (end.status, end.phase, end.step, end.exit_code) == ("failed", "step", 7, 1)
    assert end.memory.tried_bytes == 20 * GIB
    (finding,) = end.findings
    assert finding.slug == "out-of-memory"
    assert finding.what == (
        "rank 1 ran out of memory on cuda:1 in the step after 7 steps: tried to allocate 20.0 GiB, "
        "19.5 GiB were free, 139.8 GiB in all, 24.5 GiB held and idle"
    )
    assert "CUDA out of memory" in capsys.readouterr().err, "the traceback goes into the log"


def test_the_outcome_of_other_failures_has_no_memory(tmp_path, capsys):
    run = RunDirectory(tmp_path)
    try:
        raise ZeroDivisionError("division by zero")
    except ZeroDivisionError as error:
        crash = describe_failure(error, rank=0, device="cpu", run=run)
    assert (crash.memory, crash.findings[0].slug) == (None, "rank-crashed")
    finding = Finding(slug="x", what="w", why="y", fix="f")
    user = describe_failure(UserError(finding), rank=0, device="cpu", run=run)
    assert (user.memory, user.exit_code, user.reason) == (None, 2, "w")


def test_bytes_are_readable():
    assert [format_bytes(n) for n in (17, 2**20, 3 * 2**29)] == ["17 bytes", "1.0 MiB", "1.5 GiB"]
