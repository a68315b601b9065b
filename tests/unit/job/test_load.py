"""A job is read with the origin of every value, from a file, overrides and Python."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.errors import UserError
from phalanx.job import Interval, Override, load_job, parse_override
from phalanx.job.keys import ALIASES, job_keys
from phalanx.job.source.origin import format_value, parse_scalar
from tests.unit.job.wrong_jobs import GOOD


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        Path("job.yaml").write_text(text, encoding="utf-8")
        return Path("job.yaml")

    return write


def findings(source, *overrides):
    with pytest.raises(UserError) as error:
        load_job(source, overrides)
    return error.value.findings


def test_every_value_knows_its_origin(write):
    path = write(GOOD + "optimizer:\n  lr: 1e-3\n  name: sgd\noptions:\n  net:\n    width: 8\n")
    overrides = [Override("epochs", 3, "--epochs"), "lr=2e-3", Override("seed", 5, "python")]
    loaded = load_job(path, overrides)
    assert loaded.job.optimizer.lr == 2e-3
    assert loaded.job.options == {"net": {"width": 8}}
    origins = {
        "recipe": "job.yaml:1",
        "epochs": "--epochs",
        "optimizer.lr": "lr=2e-3 on the command line",
        "optimizer.name": "job.yaml:6",
        "options.net.width": "job.yaml:9",
        "seed": "python",
        "steps": "default",
    }
    assert {key: str(loaded.origin(key)) for key in origins} == origins
    assert loaded.path == path
    assert pickle.loads(pickle.dumps(loaded)) == loaded  # noqa: S301


def test_mapping_is_a_source_and_paths_and_tuples_are_taken():
    loaded = load_job({"recipe": "digits", "output": Path("a"), "optimizer.betas": (0.8, 0.9)})
    assert loaded.job.output == "a"
    assert loaded.job.optimizer.betas == [0.8, 0.9]
    assert str(loaded.origin("optimizer.betas")) == "python"
    assert loaded.path is None


def test_a_job_written_out_loads_again(write):
    job = load_job({"recipe": "digits", "checkpoint": {"every": "500 steps"}}).job
    path = write(yaml.safe_dump(job.model_dump(mode="json")))
    assert load_job(path).job == job


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("lr=1e-3", "optimizer.lr", 0.001),
        ("batch_size=128", "global_batch_size", 128),
        ("global-batch-size=128", "global_batch_size", 128),
        ("workers=auto", "loader.workers", "auto"),
        ("devices.gpus=[0,1]", "devices.gpus", [0, 1]),
        ("name=abc", "name", "abc"),
        ("name=123", "name", "123"),
        ("name=null", "name", None),
        ("output=a: b # c", "output", "a: b # c"),
        ("options.x=null", "options.x", None),
        ("depth=3", "options.depth", 3),
        ("net.depth=[1, {a: yes}]", "options.net.depth", [1, {"a": "yes"}]),
        ('size="3"', "options.size", "3"),
        ("expr=a=b", "options.expr", "a=b"),
        ("star=*x", "options.star", "*x"),
        ("schedule.warmup=5%", "schedule.warmup", Interval(count=5, unit="percent")),
        ("optimizer={name: sgd}", "optimizer.name", "sgd"),
        ("activation_checkpointing=on", "activation_checkpointing", "on"),
        ("activation_checkpointing=false", "activation_checkpointing", "off"),
        ("loader.cache=ram", "loader.cache", "ram"),
        ("loader.cache=true", "loader.cache", "ram"),
        ("loader.cache=off", "loader.cache", "off"),
    ],
)
def test_override_sets_the_key_it_names(text, key, value):
    loaded = load_job({"recipe": "digits"}, [parse_override(text)])
    place = loaded.job
    for part in key.split("."):
        place = place[part] if isinstance(place, dict) else getattr(place, part)
    assert place == value
    assert str(loaded.origin(key)) == f"{text} on the command line"


def test_override_replaces_a_section_and_its_origins(write):
    path = write(GOOD + "optimizer: {lr: 0.5, eps: 0.1}\n")
    loaded = load_job(path, ["optimizer={lr: 0.25}"])
    assert loaded.job.optimizer.lr == 0.25
    assert str(loaded.origin("optimizer.eps")) == "default"


def test_later_override_wins_and_raw_text_of_an_option_is_read():
    loaded = load_job({"recipe": "digits"}, ["epochs=3", Override("epochs", "4", "--epochs")])
    assert loaded.job.epochs == 4
    assert load_job({"recipe": "d"}, [Override("options.x", "4", "python")]).job.options["x"] == "4"


def test_wrong_overrides_are_all_reported_with_their_option():
    found = findings(
        {"recipe": "digits"},
        "epochs",
        "=3",
        "optimizer.lrr=1",
        "epochs.x=1",
        "a..b=1",
        "gpus=[0,",
        "seed=.inf",
        Override("optimizer.lr", "fast", "--lr"),
        Override("devices.gpus", [0.5], "--gpus"),
    )
    assert [f.slug for f in found] == [
        "override-syntax",
        "override-syntax",
        "unknown-key",
        "unknown-key",
        "unknown-key",
        "yaml-syntax",
        "wrong-value",
        "wrong-value",
        "wrong-value",
    ]
    assert found[2].fix == "optimizer.lr=1"
    assert "--lr 0.001" in [f.fix for f in found]
    assert "(--lr)" in found[-1].why


def test_empty_section_means_its_defaults(write):
    loaded = load_job(write(GOOD + "optimizer:\n  # lr: 3\n"), ["lr=2.0"])
    assert loaded.job.optimizer.lr == 2.0
    assert load_job(write(GOOD + "optimizer:\n")).job.optimizer.lr == 1e-3


def test_unreadable_file_says_why(write, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    path = write(GOOD)
    monkeypatch.setattr(Path, "open", refuse)  # root may read anything, so mode bits prove nothing
    (finding,) = findings(path)
    assert (finding.slug, finding.why) == ("job-unreadable", "Permission denied")


def test_many_problems_are_cut_short(write):
    many = "".join(f"k{i}: .nan\nu{i}: 1\n" for i in range(500))
    found = findings(write(GOOD + many))
    assert (len(found), found[-1].slug) == (51, "more-problems")


def test_cyclic_python_values_are_refused():
    loop: dict[str, object] = {}
    loop["a"] = [loop]
    ring: list[object] = []
    ring.append(ring)
    for value in (loop, ring):
        assert findings({"recipe": "d", "options": {"x": value}})[0].slug == "too-deep"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1", 1),
        ("-0x10", "-0x10"),
        ("0x10", 16),
        ("0o17", 15),
        ("010", 10),
        (".5", 0.5),
        ("1.", 1.0),
        ("~", None),
        ("True", True),
        ("tRue", "tRue"),
        ("no", "no"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    assert parse_scalar(text) == value
    assert type(parse_scalar(text)) is type(value)


def test_aliases_name_keys_and_shadow_none():
    assert set(ALIASES.values()) <= set(job_keys())
    assert not set(ALIASES) & set(job_keys())


@pytest.mark.parametrize("key", [k for k in job_keys() if k not in ("options", "recipe")])
@pytest.mark.parametrize("bad", ["%nonsense", -1, 2.5, True, [[]], {"x": 1}, None])
def test_the_fix_of_a_wrong_value_can_be_pasted(key, bad, write):
    try:
        load_job({"recipe": "digits", key: bad})
    except UserError as error:
        for finding in error.findings:
            if finding.slug == "wrong-value":
                load_job(write(f"recipe: digits\n{finding.fix}\n"))
                assert finding.fix.startswith(key)


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(), st.lists))
def test_a_formatted_value_reads_back(value):
    loaded = load_job({"recipe": "d"}, [parse_override(f"options.x={format_value(value)}")])
    assert loaded.job.options["x"] == value


_FRAGMENTS = r"""recipe: d
epochs: 3
optimizer:
  lr: 1
  lr: [
- a
---
...
? x
? {a: b}
: y
<<: 1
a: *b
&b
!!int x
!<x> y
name:
1e999
%YAML 1.2
%TAG ! x:
{a: b}
{: 1}
'
"\x
"\0"
# c
options: {1: 2}
@
`"""
_LINES = st.lists(
    st.sampled_from([*_FRAGMENTS.splitlines(), "\t", "\u2028", "\ufeff"]), max_size=8
).map("\n".join)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode) | _LINES.map(str.encode))
def test_no_content_raises_anything_but_a_user_error(content):
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(content)
        file.flush()
        try:
            load_job(file.name)
        except UserError as error:
            assert all(f.what and f.why and f.fix for f in error.findings)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30) | st.tuples(st.text(max_size=8), st.text(max_size=20)).map("=".join))
def test_no_override_raises_anything_but_a_user_error(text):
    try:
        load_job({"recipe": "d"}, [text])
    except UserError as error:
        assert all(f.what and f.why and f.fix for f in error.findings)
