"""A torch that is missing, raises, dies or hangs is a fact, not a crash."""

import time

import pytest

from phalanx.machine.torch_child import ONEDNN_WITHOUT_AMX, ask_torch

CURE = ONEDNN_WITHOUT_AMX["ONEDNN_MAX_CPU_ISA"]


def outcome(answer):
    return {f"{p.device}:{p.precision}": p.ok for p in answer.facts.probes}


def test_working_torch(use_torch):
    use_torch()
    answer = ask_torch()
    assert answer.error is None
    assert answer.facts.version == "2.13.0+fake"
    assert answer.facts.nccl_version == "2.28.9"
    assert outcome(answer) == {"cpu:fp32": True, "cpu:fp16": True, "cpu:bf16": True}
    assert answer.worker_env == {}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"raises": "libcudart.so.13: cannot open"}, "ImportError: libcudart.so.13: cannot open"),
        ({"missing": "1"}, "No module named 'torch'"),
        ({"dies": "1"}, "importing torch: kills the process (SIGILL)"),
    ],
)
def test_broken_torch_gives_its_last_lines(use_torch, setting, said):
    use_torch(**setting)
    answer = ask_torch()
    assert answer.facts is None
    assert said in answer.error
    assert answer.error.splitlines()[0].startswith("importing torch: ")


@pytest.mark.parametrize(
    ("setting", "stage"),
    [({"hangs": "1"}, "importing torch"), ({"cuda_hangs": "1", "devices": "1"}, "starting CUDA")],
)
def test_hanging_torch_is_ended(use_torch, setting, stage):
    use_torch(**setting)
    began = time.monotonic()
    answer = ask_torch(timeout_s=1)
    assert answer.error == f"{stage}: gives no answer within 1 s"
    assert time.monotonic() - began < 10


def test_bf16_that_kills_is_cured_by_the_variable(use_torch):
    use_torch(kills="cpu:bf16", cure=CURE)
    answer = ask_torch()
    probe = answer.facts.probes[-1]
    assert (probe.device, probe.precision, probe.ok) == ("cpu", "bf16", True)
    assert probe.error == "kills the process (SIGILL)"
    assert probe.needs_env == answer.worker_env == ONEDNN_WITHOUT_AMX


def test_bf16_that_kills_in_any_case(use_torch):
    use_torch(kills="cpu:bf16")
    answer = ask_torch()
    assert outcome(answer) == {"cpu:fp32": True, "cpu:fp16": True, "cpu:bf16": False}
    assert answer.worker_env == {}


def test_probes_go_on_after_one_that_kills(use_torch):
    use_torch(kills="cuda:0:fp16 raise=cuda:1:bf16", devices="2")
    answer = ask_torch()
    result = outcome(answer)
    assert [name for name, ok in result.items() if not ok] == ["cuda:0:fp16", "cuda:1:bf16"]
    assert len(result) == 3 + 2 * 4
    errors = {p.error for p in answer.facts.probes if not p.ok}
    assert errors == {"kills the process (SIGILL)", "CUDA error: no kernel image"}
    assert {p.compute_capability for p in answer.facts.probes} == {None, (8, 0), (8, 1)}


def test_a_gpu_that_hangs_is_tried_once(use_torch):
    use_torch(kills="hang=cuda:0:fp32", devices="2")
    answer = ask_torch(timeout_s=1)
    result = outcome(answer)
    assert len(result) == 3 + 2 * 4
    failed = [name for name, ok in result.items() if not ok]
    assert failed == [f"cuda:0:{name}" for name in ("fp32", "tf32", "fp16", "bf16")]
