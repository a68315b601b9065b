import pytest

from tests.ranks.pool import RankPool


@pytest.fixture(scope="session")
def pool():
    pool = RankPool(2)
    yield pool
    pool.close()
