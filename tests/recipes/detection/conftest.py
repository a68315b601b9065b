"""These tests run in an environment of their own (`make test-detection`): torchvision, which
Ultralytics needs, does not load beside the CPU build of torch that the others run with."""

import os
from importlib.util import find_spec

import pytest

# Two ranks and their threads on two cores: those that wait must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

collect_ignore_glob = [] if find_spec("ultralytics") else ["test_*.py"]


@pytest.fixture(scope="session")
def pool():
    from tests.ranks.pool import RankPool

    pool = RankPool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """A data.yaml of 24 images to train on and 8 to test with, 64 pixels wide."""
    from phalanx.recipes.detection.shapes import make_shapes

    return make_shapes(tmp_path_factory.mktemp("data") / "shapes", train=24, test=8, side=64)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A model file: the parts of YOLO11, few channels and one of each."""
    file = tmp_path_factory.mktemp("model") / "small.yaml"
    file.write_text(SMALL)
    return file


SMALL = """
nc: 80
scales: {n: [0.5, 0.125, 256]}
scale: n
backbone:
  - [-1, 1, Conv, [64, 3, 2]]
  - [-1, 1, Conv, [64, 3, 2]]
  - [-1, 1, Conv, [128, 3, 2]]
  - [-1, 1, C3k2, [128, False, 0.25]]
  - [-1, 1, Conv, [128, 3, 2]]
  - [-1, 1, Conv, [128, 3, 2]]
  - [-1, 1, SPPF, [128, 5]]
head:
  - [-1, 1, nn.Upsample, [None, 2, "nearest"]]
  - [[-1, 4], 1, Concat, [1]]
  - [-1, 1, C3k2, [128, False]]
  - [[3, 9, 6], 1, Detect, [nc]]
"""
