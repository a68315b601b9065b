import pytest

from tests.ranks.pool import RankPool


@pytest.fixture(scope="session")
def pool():
    pool = RankPool()
    yield pool
    pool.close()
