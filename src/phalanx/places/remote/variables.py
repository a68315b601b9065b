"""Which environment variables go along to a run on another machine. Names may be shown, values
never: they travel on stdin and end in the environment of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from phalanx.errors import Finding
from phalanx.run.secrets import unfit_words

# What tunes the ranks, and what trackers and the hub want to see.
_PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "WANDB_", "MLFLOW_", "COMET_", "NEPTUNE_")
_NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "CLEARML_API_ACCESS_KEY")
_HERE = ("_DIR", "_HOME", "_CACHE")  # folders of this machine mean nothing over there


def variables_for(environment: Mapping[str, str], asked: Sequence[str] = ()) -> dict[str, str]:
    """What goes along: the usual names, and those that were asked for."""
    usual = {
        name
        for name in environment
        if name in _NAMES
        or (name.startswith(_PREFIXES) and (name.startswith("NCCL_") or not name.endswith(_HERE)))
    }
    return {name: environment[name] for name in sorted(usual | (set(asked) & set(environment)))}


def variable_findings(environment: Mapping[str, str], asked: Sequence[str]) -> Iterator[Finding]:
    """Variables that were asked for and are not there."""
    for name in asked:
        if name not in environment:
            yield Finding(
                slug="remote-variable",
                what=f"--env {name}: there is no such variable here",
                why="its value is taken from the environment of this command, never from its words",
                fix=f"export {name.partition('=')[0]}=...; then --env {name.partition('=')[0]}",
            )


def word_findings(words: Sequence[str], environment: Mapping[str, str]) -> Iterator[Finding]:
    """Words of a command line that must not stand in one over there."""
    for word, name in unfit_words(words, environment):
        if name is None:
            yield Finding(
                slug="remote-word",
                what=f"{word!r} holds a line break, a control character or no valid text",
                why="it would stand in the command line over there and in logs that people read",
                fix="take the character out, or rename the file",
            )
        else:
            yield Finding(
                slug="remote-secret",
                what=f"a word of the command line holds the value of {name}",
                why="it would stand in argv over there, for all users of it to read",
                fix=f"leave it out: {name} goes along in the environment, or with --env {name}",
            )
