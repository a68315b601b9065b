import pytest

from tests.cluster.commands import Commands
from tests.faults.trial import write_job
from tests.ranks.command import latest, phalanx


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory):
    """The run that nothing happens to; it also shows that a clean run raises no alarm."""
    folder = tmp_path_factory.mktemp("unbroken")
    write_job(folder)
    code, _, err = phalanx("train", "job.yaml", cwd=folder)
    assert code == 0, err
    return latest(folder)


@pytest.fixture
def commands(hosts, tmp_path):
    """Commands on two hosts, ended with the test."""
    made = Commands(hosts, tmp_path)
    yield made
    made.close()
