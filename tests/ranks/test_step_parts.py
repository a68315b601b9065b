"""A step as three separate calls, which is how graphs without collectives would run it."""

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize("world", [1, 2], ids=["single", "ddp"])
def test_passes_exchange_and_update_apart_give_the_bits_of_an_eager_step(tmp_path, world):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.ranks.step_parts", str(rank), str(world), tmp_path / "s"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    answers = [rank.communicate(timeout=240)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world
    assert [json.loads(answer.splitlines()[-1]) for answer in answers] == [[True, True]] * world
