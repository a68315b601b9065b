import pytest

from tests.ranks.pool import RankPool
from tests.recipes.policy.robots import write_swings


@pytest.fixture(scope="session")
def pool():
    pool = RankPool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def swings(tmp_path_factory):
    """A folder of demonstrations of two tasks, which move on different scales."""
    return write_swings(tmp_path_factory.mktemp("data") / "swings")
