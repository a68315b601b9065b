"""Trace every number of other tools' files and command lines into the job that is written.

Each folder of the corpus holds what a user has, and `expect.yaml`: `carried` names for each setting
the job keys that must hold its meaning, `refused` the settings that must stop the command by name,
`irrelevant` those that do not concern a job, with the reason. See `README.md` there.
"""

import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from phalanx.job import load_job
from phalanx.job.source.value_types import Interval, parse_interval
from phalanx.planner.batch.learning_rate import scale_lr
from tests.cli.command import Answer, run_cli

CORPUS = Path(__file__).parents[2] / "fixtures" / "imports" / "corpus"
CASES = sorted(path.parent.name for path in CORPUS.glob("*/expect.yaml"))
# One of each guide runs as a user runs it; the others, in this process, are quicker.
TYPED = "guide1_line", "guide2_accumulation", "guide3_deepspeed", "guide4_line", "guide5_config"
# Settings that decide how a model is trained, whatever their value looks like.
DECISIVE = re.compile(
    r"batch|(^|[._])lr|learning_rate|warmup|epoch|steps|iters|accum|precision|bf16|fp16|tf32|amp$"
    r"|seed|devices?$|^gpus?$|gpu_ids|nodes$|machines|nproc|processes|clip|decay|grad_norm",
    re.IGNORECASE,
)
NUMBERS = re.compile(r"^[\[\s\"']*[-+.]?\d[\d._eE+,:%\s\]\"'/-]*$")


def expectation(name):
    return yaml.safe_load((CORPUS / name / "expect.yaml").read_text(encoding="utf-8"))


def sources(name):
    return sorted(
        path for path in (CORPUS / name).rglob("*") if path.is_file() and path.name != "expect.yaml"
    )


def leaves(value, prefix=""):
    """Every dotted key of a file with its value."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and any(isinstance(inner, (dict, list)) for inner in value):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{prefix}.{index}")
    else:
        yield prefix, value


def options(words):
    """The settings of a command line: `--key value`, `--key=value`, `key=value`, `KEY=value`."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        is_option = bool(re.match(r"--?[A-Za-z]", word))
        name, has_value, value = word.partition("=")
        if has_value and re.fullmatch(r"[-+~A-Za-z_][\w.+-]*", name):
            yield name.lstrip("-+").replace("-", "_"), value
        elif is_option:
            values = []
            while rest and not re.match(r"--?[A-Za-z]", rest[0]) and "=" not in rest[0]:
                if values and not NUMBERS.match(rest[0]):
                    break
                values.append(rest.pop(0))
            yield name.lstrip("-").replace("-", "_"), " ".join(values) or True
        else:
            yield word, word


def settings(path):
    """What a source says, one setting at a time, by the name that a sidecar gives it."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".yaml", ".yml"):
        yield from leaves(yaml.safe_load(text))
    elif path.suffix == ".json":
        yield from leaves(json.loads(text))
    elif path.suffix == ".txt":
        yield from options(shlex.split(text))
    else:  # a script: only its lines with numbers count
        for line in text.splitlines():
            if re.search(r"=\s*\d|\s\d", line) and not line.startswith("#!"):
                yield line.strip(), "1"


def is_numeric(value):
    if isinstance(value, bool) or value is None:
        return False
    if isinstance(value, list):
        return any(is_numeric(inner) for inner in value)
    return isinstance(value, (int, float)) or bool(NUMBERS.match(str(value)))


def test_every_tool_and_every_guide_is_there():
    """A corpus that is not found would pass."""
    tools = Counter(name.partition("_")[0] for name in CASES)
    named = "accelerate trainer trl lightning ultralytics deepspeed llamafactory axolotl lerobot"
    assert all(tools[tool] >= 4 for tool in (*named.split(), "torchrun"))
    assert all(tools[f"guide{number}"] >= 2 for number in range(1, 6))


@pytest.mark.parametrize("name", CASES)
def test_every_number_of_the_source_has_an_expectation(name):
    expected = expectation(name)
    traced = {
        key for part in ("carried", "refused", "irrelevant") for key in expected.get(part, {})
    }
    found, missing = set(), []
    files = sources(name)
    for path in files:
        for key, value in settings(path):
            full = key if len(files) == 1 or path.suffix == ".txt" else f"{path.name}:{key}"
            found.add(full)
            is_named = DECISIVE.search(key.rpartition(".")[2]) and value is not None
            if (is_numeric(value) or is_named) and full not in traced and "*" not in traced:
                missing.append(f"{full} = {value!r}")
    assert not missing, f"{name}: {missing}"
    assert not traced - found - {"*"}, "a sidecar speaks of settings that are not there"
    assert all(str(reason).strip() for reason in expected.get("irrelevant", {}).values())
    wanted = [pair for part in expected.get("carried", {}).values() for pair in part.items()]
    assert all(dict(wanted)[key] == value for key, value in wanted), "one key, two values"


def ranks_of(job):
    gpus = job.devices.gpus
    if isinstance(gpus, list):
        return len(gpus)
    return gpus if isinstance(gpus, int) else job.devices.cpu


def meaning(loaded, key, nodes):
    """What a job says of `key`: a key of the job, or one that several of them make up."""
    job = loaded.job
    accumulation = job.gradient_accumulation or 1
    ranks = ranks_of(job) and ranks_of(job) * nodes
    total = job.global_batch_size
    if total is None and ranks and job.batch_per_gpu:
        total = job.batch_per_gpu * accumulation * ranks
    if key == "ranks":
        return ranks_of(job)
    if key == "batch.total":
        return total
    if key == "batch.accumulation":
        return accumulation
    if key == "batch.per_gpu":
        return job.batch_per_gpu or job.micro_batch_size
    if key == "rate":  # on eight ranks where the source does not say how many
        return scale_lr(job, total or (job.batch_per_gpu or 1) * accumulation * 8).value
    place = job
    for part in key.split("."):
        place = place.get(part) if isinstance(place, dict) else getattr(place, part, None)
    return place


def is_same(expected, found, job):
    if isinstance(expected, dict) and "any" in expected:
        return any(is_same(one, found, job) for one in expected["any"])
    if isinstance(found, Interval):
        expected = parse_interval(expected)
        if expected.unit != found.unit and job.steps:
            expected, found = (
                parse_interval(round(each.count * job.steps / 100))
                if each.unit == "percent"
                else each
                for each in (expected, found)
            )
        return expected == found
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(
            is_same(one, other, job) for one, other in zip(expected, found, strict=True)
        )
    if isinstance(found, (int, float)) and isinstance(expected, (int, float)):
        same_kind = isinstance(found, bool) == isinstance(expected, bool)
        return same_kind and math.isclose(expected, found, rel_tol=1e-9)
    return found == expected


def is_within_total(key, loaded, wanted):
    """One stated total leaves the way it is made up to the plan."""
    job = loaded.job
    parts = {"batch.per_gpu": job.micro_batch_size, "batch.accumulation": job.gradient_accumulation}
    return (
        key in parts
        and parts[key] is None
        and job.global_batch_size is not None
        and job.global_batch_size == wanted.get("batch.total")
    )


def differences(expected, loaded, printed):
    wanted = {key: value for part in expected["carried"].values() for key, value in part.items()}
    nodes = wanted.pop("nodes", 1)
    wrong = []
    printed = " ".join(printed.split())
    if nodes != 1 and not re.search(rf"--nodes[ =]{nodes}\b", printed):
        wrong.append(f"--nodes {nodes} is not said")
    launched = printed.partition("phalanx launch ")[2]
    for words in expected.get("launch", []):
        if words not in launched:
            wrong.append(f"`phalanx launch` must have {words!r}, it has {launched!r}")
    for key, value in wanted.items():
        found = meaning(loaded, key, nodes)
        if not is_same(value, found, loaded.job) and not is_within_total(key, loaded, wanted):
            wrong.append(f"{key} must be {value!r}, is {found!r}")
    return wrong


def command(name, expected):
    """The words behind `phalanx import`, as a user types them in the folder of the case."""
    named = expected.get("import")
    first = sources(name)[0].name if named is None else named
    given = (
        shlex.split((CORPUS / name / first).read_text(encoding="utf-8"))
        if first.endswith(".txt")
        else [first]
    )
    recipe = ["--recipe", expected["recipe"]] if "recipe" in expected else []
    return ["import", *given, *expected.get("options", []), *recipe]


@pytest.fixture
def place(tmp_path, monkeypatch):
    def enter(name):
        shutil.copytree(CORPUS / name, tmp_path / name)
        monkeypatch.chdir(tmp_path / name)
        return expectation(name)

    return enter


def check(expected, answer, out):
    """Judge an answer: a job with every number in it, or an error with the names of those left."""
    said = f"exit {answer.code}\n{answer.out}\n{answer.err}"
    refused = expected.get("refused", {})
    if answer.code == 2 and (refused or expected.get("may_refuse")):
        assert not out.exists(), "nothing is written on failure"
        words = [word for part in refused.values() for word in part]
        words += expected.get("may_refuse", [])
        lost = [word for word in words if word not in "".join(answer.err.split())]
        assert not lost, f"the error does not name {lost}\n{said}"
        return None
    assert answer.code == 0, said
    assert not refused, f"a job was written without {list(refused)}\n{said}"
    loaded = load_job(out)
    wrong = differences(expected, loaded, answer.out + answer.err)
    assert not wrong, "\n".join([*wrong, said, out.read_text(encoding="utf-8")])
    return loaded


@pytest.mark.parametrize("name", CASES)
def test_every_number_reaches_the_job(name, place):
    expected = place(name)
    out = Path("out.job.yaml")
    words = [*command(name, expected), "--out", str(out)]
    loaded = check(expected, run_cli(*words), out)
    if loaded is None:
        return
    out.unlink()
    report = json.loads(run_cli(*words, "--json").out)
    told = [line["ours"] for line in report["settings"] if line["ours"]]
    assert told, "nothing was told"
    wrong = [one for one in told if not is_written(one, loaded)]
    assert not wrong, f"{wrong} were told, this was written:\n{out.read_text(encoding='utf-8')}"


def is_written(told, loaded):
    """Whether a line of the report, `optimizer.lr = 5e-05`, is what the job file says."""
    key, _, value = told.partition(" = ")
    if key == "deepspeed.config" or value.endswith("..."):  # named by its file; cut short
        return True
    number = re.fullmatch(r"[-+.\deE]+", value)
    said = float(value) if number else yaml.safe_load(value)
    return is_same(said, meaning(loaded, key, 1), loaded.job)


@pytest.mark.parametrize("name", TYPED)
def test_the_command_itself(name, place):
    expected = place(name)
    found = subprocess.run(
        [sys.executable, "-m", "phalanx", *command(name, expected), "--out", "out.job.yaml"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    answer = Answer(found.returncode, found.stdout, found.stderr)
    check(expected, answer, Path("out.job.yaml"))
