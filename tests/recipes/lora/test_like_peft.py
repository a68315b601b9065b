"""HF Trainer + peft learns the same from the same batches and first adapters: what a step does is
compared with code that is not ours. benchmarks/lora/curve.py runs it at any size."""

from importlib.util import find_spec

import pytest

from tests.fixtures.scripts import beside

pytestmark = pytest.mark.skipif(find_spec("accelerate") is None, reason="needs: accelerate")


@pytest.fixture
def curve():
    with beside("lora"):
        import curve

        yield curve


@pytest.mark.full
def test_the_loss_curve_is_that_of_hf_trainer(tmp_path, curve):
    # Weights lie in bf16 files, as most do; adapters learn in fp32 all the same. Micro-batches of
    # very unequal numbers of tokens: a mean of means would be off by several percent.
    options = curve.drawn_model(tmp_path, curve.SIZES["tiny"], rows=24) | {"r": 8, "alpha": 16}
    course = curve.Course(options, steps=8, micro=3)
    curves = curve.compare(course, tmp_path)
    assert len(curves) == 8
    assert curves[-1][0] < 0.97 * curves[0][0]
    assert curve.apart(curves) < 1e-5  # 2 % is asked; 1e-7 is found
