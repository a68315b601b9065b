"""Two hosts lose sight of each other: the run goes on, or starts again when the network is back, or
goes on with the host that is left. The hosts are network namespaces (tests/cluster/hosts.py)."""

import time

import pytest

from phalanx.run.directory import RunDirectory
from tests.cluster.commands import DEADLINE_S, steps, wait_for
from tests.faults.trial import JOB, report, said
from tests.fixtures.event_lines import read_events
from tests.ranks.command import latest, phalanx
from tests.ranks.runs import RECIPE

# As slow as the recipe is told to be, so that a cable can be pulled in the middle.
HELD = '''"""The parity recipe, no faster than the test allows."""
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, {folder!r})
from parity import Parity


class Held(Parity):
    def loss(self, model, batch, keys):
        if "RANK" in os.environ and Path({held!r}).exists():
            time.sleep(0.1)
        return super().loss(model, batch, keys)
'''


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, ranks=1)
    (tmp_path / "held").touch()
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same on one host, where nothing happens."""
    folder = tmp_path_factory.mktemp("whole")
    write(folder, ranks=2)
    code, _, err = phalanx("train", "job.yaml", cwd=folder)
    assert code == 0, err
    return latest(folder)


def write(folder, ranks):
    parent, held = RECIPE.rpartition("/")[0], str(folder / "held")
    (folder / "held.py").write_text(HELD.format(folder=parent, held=held))
    # The same bits on any number of ranks, so that all of them can be compared.
    (folder / "job.yaml").write_text(
        JOB.format(
            recipe="held.py:Held",
            ranks=ranks,
            steps=60,
            options="dropout: 0.0",
            more="determinism: exact",
        )
    )


def start(commands, folder, name, *words):
    run = RunDirectory(folder / "runs" / name)
    argv = ["job.yaml", "--name", name, *words]
    both = [commands.start(host, *argv) for host in (0, 1)]
    wait_for(lambda: bool(steps(run)) and max(steps(run)) >= 25, commands)
    return run, both


@pytest.mark.full
@pytest.mark.parametrize("seconds", [2, 20, 120])
def test_a_cut_cable_is_survived(hosts, folder, commands, whole, seconds):
    run, both = start(commands, folder, "cut")
    at_s = time.time()
    hosts.cut(1)
    time.sleep(seconds)
    hosts.mend(1)
    mended_s = time.time()
    (folder / "held").unlink()
    assert [child.wait(DEADLINE_S) for child in both] == [0, 0], commands.said
    attempts = len(said(run, "attempt"))
    assert attempts == (1 if seconds == 2 else 2), commands.said
    after = [e.time_s for e in read_events(run.events) if e.kind == "step" and e.time_s > mended_s]
    note = f"first step {after[0] - mended_s:.1f} s after the cable was back"
    report(f"network cut for {seconds} s", run, at_s=at_s, unbroken=whole, note=note)


@pytest.mark.full
def test_a_run_goes_on_with_the_node_that_is_left(hosts, folder, commands, whole):
    words = ("devices.min_nodes=1", "devices.node_wait_s=1")
    run, both = start(commands, folder, "left", *words)
    at_s = time.time()
    both[1].kill()
    (folder / "held").unlink()
    assert both[0].wait(DEADLINE_S) == 0, commands.said
    (revision,) = said(run, "revision")
    assert revision.data["changes"]["ranks"] == {"old": 2, "new": 1}
    assert revision.data["changes"]["nodes"] == {"old": 2, "new": 1}
    assert "global_batch_size" not in revision.data["changes"]
    assert "error[node-lost]" not in both[0].said()
    assert max(steps(run)) == 60
    note = "goes on with the node left"
    report("a node is lost, min_nodes = 1", run, at_s=at_s, unbroken=whole, note=note)
