import pytest


@pytest.fixture(autouse=True, scope="session")  # before any other fixture starts something
def _needs_a_gpu():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs: a CUDA GPU")
