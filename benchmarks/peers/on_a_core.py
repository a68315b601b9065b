"""The peers at a tiny model on one core of a CPU, for the table of benchmarks/overhead.py."""

from importlib.util import find_spec
from pathlib import Path

from side_by_side import run_child

HERE = Path(__file__).parent
PEERS = {
    "HF Trainer": ("transformers", "hf-trainer"),
    "Accelerate": ("accelerate", "accelerate"),
    "Lightning": ("pytorch_lightning", "lightning"),
}


def peer_turns(core, *, seconds=3):
    """{peer: a call that gives microseconds per step of each window}, of those installed."""
    return {
        label: lambda name=name: _measure(name, core, seconds)
        for label, (package, name) in PEERS.items()
        if find_spec(package) is not None
    }


def _measure(name, core, seconds):
    argv = [HERE / "contestant.py", "tiny", name, "--seconds", seconds, "--threads", 1]
    figures = run_child(argv, cores=core)
    return [1e6 * figures["batch"] / rate for rate in figures["rates"]]
