"""Every public name of `phalanx` works, whatever was called before it."""

import random
import subprocess
import sys

import pytest

import phalanx
from tests.fixtures.trained_digits import train_digits

SCRIPT = """
import sys
import phalanx

run, script, *order = sys.argv[1:]
calls = {
    "bench": lambda: phalanx.bench(),
    "check": lambda: phalanx.check(),
    "doctor": lambda: phalanx.doctor(run),
    "estimate": lambda: phalanx.estimate("digits", gpus=4, gpu="A100-80"),
    "evaluate": lambda: phalanx.evaluate(run),
    "export": lambda: phalanx.export(run, to="safetensors", out="exported"),
    "launch": lambda: phalanx.launch(script, cpu=1, quiet=True),
    "plan": lambda: phalanx.plan("digits", epochs=1),
    "train": lambda: phalanx.train("digits", "devices.cpu=1", epochs=1),
    "verify": lambda: phalanx.verify("digits", steps=1),
}
for name in order:
    value = getattr(phalanx, name)
    if isinstance(value, type):  # what a function returns
        assert value.__module__.startswith("phalanx."), value
    else:
        calls.pop(name)()
    assert getattr(phalanx, name) is value, f"`phalanx.{name}` became {getattr(phalanx, name)}"
    print(name, flush=True)
assert not calls, f"public functions that nothing calls: {sorted(calls)}"
"""


@pytest.mark.ranks
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2))])
def test_every_public_name_can_be_called_in_any_order(tmp_path, seed):
    run = train_digits(tmp_path)
    (tmp_path / "script.py").write_text("print('loss: 1.0')\n")
    order = list(phalanx.__all__)
    random.Random(seed).shuffle(order)
    argv = [sys.executable, "-c", SCRIPT, str(run.path), str(tmp_path / "script.py"), *order]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert [line for line in done.stdout.splitlines() if line in order][-len(order) :] == order
