"""Which torch wheel runs on which GPU, and which one to install."""

from dataclasses import replace

import pytest

from phalanx.machine.torch_checks import install_line, runs_on


@pytest.mark.parametrize(
    ("capability", "arch_list", "runs"),
    [
        ((8, 6), ["sm_80"], True),
        ((8, 9), ["sm_80", "sm_90"], True),
        ((8, 0), ["sm_86"], False),
        ((7, 5), ["sm_80"], False),
        ((7, 5), ["sm_70"], True),
        ((9, 0), ["sm_80"], False),
        ((9, 0), ["sm_80", "compute_80"], True),
        ((9, 0), ["sm_90a"], True),
        ((10, 3), ["sm_100"], True),
        ((10, 3), ["sm_100a"], False),
        ((10, 3), ["sm_100f"], True),
        ((12, 0), ["sm_100", "compute_100"], True),
        ((12, 0), ["compute_100a"], False),
        ((6, 1), ["sm_75", "compute_120"], False),
        ((9, 0), ["nonsense"], False),
    ],
)
def test_which_kernels_run_where(capability, arch_list, runs):
    assert runs_on(capability, arch_list) is runs


def test_install_lines(load_machine):
    index = "https://download.pytorch.org/whl"
    assert install_line(load_machine("cpu")) == f"pip install 'torch>=2.10' --index-url {index}/cpu"
    assert install_line(load_machine("mps")) == "pip install 'torch>=2.10'"
    assert install_line(load_machine("8xa100")).endswith("/cu130")
    old = replace(load_machine("8xa100"), driver_cuda=(12, 4))
    assert install_line(old).endswith("/cu128")
    old_gpu = load_machine("1xt4")
    volta = replace(old_gpu.gpus[0], compute_capability=(7, 0))
    assert install_line(replace(old_gpu, gpus=(volta,))).endswith("/cu126")
