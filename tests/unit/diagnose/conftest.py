"""A run on one rank and the same run on two."""

import pytest

from tests.unit.diagnose.recordings import make_run


@pytest.fixture
def one():
    return make_run(1)


@pytest.fixture
def many():
    return make_run(2)
