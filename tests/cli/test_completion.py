"""The shell completes verbs and options; the script for it comes from the command."""

import os
import subprocess
import sys

import pytest


def complete(words, shell="bash"):
    env = {**os.environ, "_PHALANX_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        env |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    else:
        env |= {"_TYPER_COMPLETE_ARGS": words}
    argv = [sys.executable, "-m", "phalanx"]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60).stdout


def test_verbs_are_completed():
    assert {"explain", "export", "estimate", "evaluate"} <= set(complete("phalanx e").split())


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_options_are_completed(shell):
    assert "--batch-size" in complete("phalanx train --batch", shell)


def test_the_script_for_a_shell_is_shown():
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "--show-completion", "bash"],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "_PHALANX_COMPLETE=complete_bash" in done.stdout, done.stderr
