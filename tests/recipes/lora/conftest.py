import os

import pytest

from tests.ranks.pool import RankPool
from tests.recipes.lora.models import write_model, write_rows

# Bars of transformers that would fill reports of failures.
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"


@pytest.fixture(scope="session")
def pool():
    """Ranks of its own: DeepSpeed changes torch in the process for good."""
    pool = RankPool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A folder with a small pretrained model."""
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl")
