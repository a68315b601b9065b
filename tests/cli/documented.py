"""The commands that README and docs show, and the home of each: the one place where it is executed.

A home has the commands that its pattern finds, the first home that does, and says what is run in
their place: runs are short, files and machines of the reader's are those of the test, GPUs are a
described machine or a CPU. `asked(NAME)` are its commands, the same question once; the test of that
home runs all of them. `python -m tests.cli.documented` lists everything.
"""

import re
import shlex
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.cli.command import run_cli

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "README.zh-CN.md", *sorted(ROOT.glob("docs/**/*.md"))]


class Command(NamedTuple):
    """A command, the exit code it says, the output it shows."""

    page: str
    words: tuple[str, ...]
    exit_code: int = 0
    shown: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


class Asked(NamedTuple):
    """A command, and the words that its home runs, without `phalanx`."""

    command: Command
    words: list[str]

    def __str__(self) -> str:
        return shlex.join(self.words)


class Home(NamedTuple):
    where: str
    """The test that runs its commands."""
    has: str
    """What a command of it is like."""
    instead: dict[str, str]
    """What is run in place of what is written, one after the other."""


HOMES = {
    "detection": Home(
        "tests/recipes/detection/test_documented.py",
        r"(plan|train|estimate|--recipe) detection\b|models/best\.pt|^phalanx export RUN",
        {
            r"^phalanx train detection( data.*)?$": r"phalanx plan detection\1",
            r" --gpus all": " --machine '8x A100-80'",
            "model=yolo11n.pt": "model=small.yaml",
            "=320,480,640,800": "=320,640",
            r"(plan|estimate|train) detection(?!.* model=)": r"\1 detection model=small.yaml",
            r"(plan|estimate|train) detection(?!.* data=)": r"\1 detection data=configs/data.yaml",
            r"--cpu 2 --epochs 2": "--cpu 1 --steps 2 conf=0.25 --name shapes",
            r"\bRUN\b": "runs/shapes",
            r"(?<!final_)models?/best\.pt(?! --recipe)": "runs/shapes/final_model/best.pt",
            r"(?<!/)final_model/best.pt": "runs/shapes/final_model/best.pt",
            " data=data.yaml": " data=configs/data.yaml",
        },
    ),
    "lora": Home(
        "tests/recipes/lora/test_documented.py",
        r"^phalanx (plan|train) lora\b|--to merged|^phalanx export --to onnx --dynamic",
        {
            r"^phalanx train (.*) --gpus 0,1,2,3": r"phalanx plan \1 --machine '4x A100-80'",
            r" model=(FOLDER|ORG/NAME) data=rows.jsonl": "",
            r"^phalanx (plan|train) lora": r"phalanx \1 lora model=model data=rows.jsonl",
            r"^(phalanx train.*)$": r"\1 --steps 2 --cpu 1 completions=1 max_new_tokens=2",
            r" --steps 3 --cpu 1": "",
        },
    ),
    "policy": Home(
        "tests/recipes/policy/test_documented.py",
        r"\bpolicy\b|metaworld|libero_90|runs/mine|--benchmark NAME",
        {
            r"episodes=\d+": "episodes=2 workers=1",
            " --video videos/": " --video films",
            "tasks=drawer-open-v3,window-open-v3": "tasks=drawer-open-v3,reach-v3",
            r"^phalanx train policy$": "phalanx plan policy tasks=reach-v3 episodes=2",
            r"^phalanx train (policy data=(drawers|libero_90|kitchen))": r"phalanx plan \1",
            "google/siglip-so400m-patch14-384": "siglip",
            r" size=170m( --machine)?": r" size=tiny\1",
            "--cpu 2 --steps 60": "--cpu 1 --steps 2",
            r"(runs/)?(mine|policy|NAME)\b(?= --benchmark)": "runs/policy",
            r"checkpoint-2000": "latest",
            "runs/mine/": "runs/policy/",
            "runs/libero": "runs/policy",
            "--benchmark NAME": "--benchmark metaworld",
            r"^(phalanx evaluate) (--benchmark.*)$": r"\1 runs/policy \2",
            r"( --max-steps \d+)?( --episodes \d+)( --max-steps \d+)?": "",
            r"^(phalanx evaluate.*)$": r"\1 --episodes 1 --max-steps 16 --workers 1",
        },
    ),
    "bev": Home(
        "tests/recipes/bev/test_documented.py",
        r"\bbev\b|--benchmark highway",
        {
            r"episodes=\d+": "episodes=2 workers=1",
            " --video drives": " --video films",
            r"^phalanx train bev$": "phalanx plan bev 'scenarios=[merge]' episodes=2",
            r"^phalanx train (bev data=crossings)": r"phalanx plan \1",
            r"^phalanx train (bev preset=carla.*)": r"phalanx plan \1",
            " --gpus all": " --machine '8x A100-80'",
            "data=/data/pdm_lite": "data=pdm_lite bev_channels=5 bev_cells=[64,64]",
            "(preset=carla)": r"\1 width=32 depth=2",
            "--cpu 2 --steps 40": "--cpu 1 --steps 2 pictures=false",
            r" --episodes \d+": "",
            r"^(phalanx evaluate.*)$": r"\1 --episodes 1 --max-steps 8 --workers 1",
        },
    ),
    "nodes": Home(
        "tests/cluster/test_documented.py",
        r" --nodes 2 --rendezvous ",
        {r"(--nodes 2)": r"--cpu 1 \1", "(job.yaml)": r"\1 --steps 2"},
    ),
    "remote": Home(
        "tests/remote/test_documented.py",
        r"^phalanx remote ",
        {
            r" --gpus [\d,]+": "",
            r"^(phalanx remote train.*)$": r"\1 --cpu 1 --steps 2",
            "lora preset=paper_r64": "digits",  # fine-tuned in lora's own home
        },
    ),
    "slurm": Home(
        "tests/cluster/test_documented.py",
        r"^phalanx slurm (launch|status|logs|cancel|requeue)\b|^phalanx watch 42",
        {"--partition gpu": "--partition main", "--gpus-per-node 4": "--cpu 1"},
    ),
    "launch": Home(
        "tests/cli/test_docs_runs.py",
        r"^phalanx launch ",
        {r"--gpus \d": "--cpu 1", r"launch (?!.*--cpu)": "launch --cpu 1 "},
    ),
    "serving": Home(
        "tests/cli/test_docs_runs.py",
        r"^phalanx watch .*--(web|tensorboard)",
        {r" --port \d+": ""},
    ),
    "runs": Home(
        "tests/cli/test_docs_runs.py",
        r"^phalanx (verify|watch|doctor|stop|evaluate|export|bench)\b|--ladder|--resume"
        r"|train (my_\S+|job.yaml --detach)",
        {
            r"bench JOB$": "bench digits",
            r"bench JOB --gpus 1 --micro 8,16,32": "bench job.yaml --cpu 1 --micro 8 --steps 3",
            r" --gpus all": "",
            "width=64": "width=8",
            "runs/second": "runs/first",
            "verify digits --ranks 2": "verify digits",
            r"(verify my_recipe.py:MyRecipe) --epochs 10": r"\1 --steps 2",
            r"^(phalanx train my_.*)": r"\1 --steps 2",
            r" --epochs 10( --batch-size 64 --steps 2)": r"\1",
            r"(--cpu 2 --ladder)": r"\1 --steps 2",
            r"--ranks 4 --steps 10": "--ranks 3 --steps 2",
        },
    ),
    "shell": Home("tests/cli/test_docs.py", r"-completion\b", {}),
    "questions": Home(
        "tests/cli/test_docs.py",
        r"^phalanx (--lang \w+ )?(check|plan|train|estimate|explain|import|recipes|slurm)\b",
        {
            r"\bJOB\b": "job.yaml",
            "size=320,480,640,800": "width=8,16",
            "^phalanx train": "phalanx plan",
            " --detach": "",
            r"^(phalanx plan (?!.*--machine).*(--gpus|--fsdp|--deepspeed).*)$":
                r"\1 --machine '8x A100-80'",
            r"^(phalanx slurm (?!.*--print).*)$": r"\1 --print",
            r"^(phalanx import (?!.*--out).*)$": r"\1 --out imported.yaml",
        },
    ),
}  # fmt: skip
HOMES_OF_README = ("runs", "questions")
"""The README's own test has these of its commands, word for word."""
ORDER = (
    "add",
    "collect",
    "copy",
    "import",
    "train",
    "launch",
    "plan",
    "evaluate",
    "export",
    "check",
)


def commands(page):
    """Every `phalanx` line of a page: in blocks of shells, after a prompt, and indented."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    name = page.relative_to(ROOT).as_posix()
    for kind, block in re.findall(r"^```(bash|console|text)\n(.*?)^```$", text, re.M | re.S):
        if kind == "bash":
            for line in block.splitlines():
                yield from _command(name, line)
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            line, *shown = part.splitlines()
            yield from _command(name, line, shown if kind == "console" else [])
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for line in re.findall(r"^    (?:\$ )?(phalanx .*)$", outside, re.M):
        yield from _command(name, line)


def mentions(page):
    """Commands that a page speaks of within its text."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for said in re.findall(r"`(phalanx [^`]+)`", text):
        yield Command(page.relative_to(ROOT).as_posix(), tuple(shlex.split(said)))


def _command(page, line, shown=()):
    if "phalanx " not in line:
        return
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if words[:1] == ["phalanx"]:
        stated = re.search(r"# .*\bexits (\d+)", line)
        lines = tuple(each for each in shown if each.strip() not in ("", "..."))
        yield Command(page, tuple(words), int(stated[1]) if stated else 0, lines)


ALL = [command for page in PAGES for command in commands(page)]


def home_of(words):
    """The name of its home; None where it has none."""
    said = shlex.join(_in_english(words))
    for name, home in HOMES.items():
        if re.search(home.has, said):
            is_readme = name in HOMES_OF_README and tuple(_in_english(words)) in _of_readme()
            return "readme" if is_readme else name
    return None


def _in_english(words):
    """Before the verb `--lang` is what a page is about; at the end it is the page's own."""
    return words[:-2] if words[-2:-1] in (["--lang"], ("--lang",)) else words


@cache
def _of_readme():
    return {command.words for command in commands(README)}


def as_run(words, home, instead=None):
    """The words of a command as its home runs them, without `phalanx`."""
    said = shlex.join(_in_english(words))
    for pattern, other in (HOMES[home].instead if instead is None else instead).items():
        said = re.sub(pattern, other, said, count=1)
    return shlex.split(said)[1:]


def asked(home):
    """What a home runs, the same question once, in an order that has first what
    others need."""
    found = {}
    for command in ALL:
        words = tuple(as_run(command.words, home)) if home_of(command.words) == home else ()
        if words and home_of(("phalanx", *words)) != "readme":
            found.setdefault(words, command)

    def place(words):
        return next((ORDER.index(word) for word in words if word in ORDER), len(ORDER))

    return [Asked(found[words], list(words)) for words in sorted(found, key=place)]


def label(line):
    """What a line begins with, up to its first number: the part that is no measurement."""
    return re.split(r"\s{2,}|\d", line.strip())[0].strip()


def assert_as_shown(command, output):
    for line in command.shown:
        assert label(line) in output, f"`{line}` is no longer in the output of {command}"


def assert_runs(question, *, exit_code=0):
    """Run a command as its home does; it ends well and says what the page shows."""
    code, out, err = run_cli(*question.words)
    assert code == exit_code, f"{question.command}\n{out}{err}"
    assert_as_shown(question.command, out + err)


if __name__ == "__main__":
    for home in HOMES:
        for command, words in asked(home):
            print(f"{home:10} {shlex.join(command.words[1:])}\n{'':10} -> {shlex.join(words)}")
    homes = Counter(map(home_of, {command.words for command in ALL}))
    print(sum(homes.values()), "commands:", homes)
