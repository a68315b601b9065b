"""What is wrong with the data of a job: every Finding with its counts and line numbers."""

import json

import pytest

from phalanx.recipe import Finding
from phalanx.recipes.lora.check import check_data
from phalanx.recipes.lora.data import open_data
from phalanx.recipes.lora.options import LoraOptions
from tests.recipes.lora.tiny import CHATML, FORGETFUL, tiny_tokenizer

GOOD = {"prompt": "p ", "response": "r"}
TURNS = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
]


def lines(*rows):
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


CASES = {
    # name: (file, its text, options, template, [(slug, severity, parts of what/why/fix), ...])
    "near file": (
        "order.jsonl",
        lines(GOOD),
        {"data": "orders.jsonl"},
        None,
        [("data-missing", "error", ["did you mean", "order.jsonl`", "options.data"])],
    ),
    "unknown data set": (
        "x.jsonl",
        lines(GOOD),
        {"data": "nobody/nothing", "test_data": "gone.csv"},
        None,
        [
            ("data-missing", "error", ["nobody/nothing", "not in the cache", "HF_HUB_OFFLINE"]),
            ("data-missing", "error", ["gone.csv", "options.test_data"]),
        ],
    ),
    "ending": ("rows.xml", "<a/>", {}, None, [("data-format", "error", [".xml", ".jsonl"])]),
    "empty": (
        "rows.jsonl",
        "\n\n",
        {},
        None,
        [("data-empty", "error", ["no row in", "rows.jsonl"])],
    ),
    "rows": (
        "rows.jsonl",
        lines(
            GOOD, "{not", GOOD, "", {"prompt": "p"}, "[1]", "{oops", {"prompt": " ", "response": 1}
        )
        + lines({"prompt": "p", "response": {}}),
        {},
        None,
        [
            ("data-rows", "error", ["2 of 8 rows are not JSON: lines 2, 7", "sed -i.bak '2d;7d'"]),
            ("data-rows", "error", ["1 of 8 rows have no `response`: line 5", "'5d'"]),
            ("data-rows", "error", ["1 of 8 rows are no objects: line 6", "a list"]),
            ("data-rows", "error", ["1 of 8 rows have an empty `prompt`: line 8"]),
            (
                "data-rows",
                "error",
                ["1 of 8 rows have a `response` that is not text: line 9", "dict"],
            ),
        ],
    ),
    "many rows": (
        "rows.csv",
        "prompt,response\n" + 'p,"two\nlines "\n' + "p,\n" * 1200,
        {"test_share": 0.5},
        CHATML,
        [("data-rows", "error", ["1,200 of 1,201", "lines 4, 5, 6, 7, 8 and 1,195 more"])],
    ),
    "columns": (
        "rows.csv",
        "ask,reply\na,b\n",
        {"prompt": "asks"},
        None,
        [("data-column", "error", ["`asks` (did you mean `ask`?)", "`ask`, `reply`"])],
    ),
    "columns by name": (
        "rows.json",
        json.dumps([{"question": "a", "reply": "b"}]),
        {},
        None,
        [("data-column", "error", ["only `question`", "`reply`", "prompt=question response="])],
    ),
    "too long": (
        "rows.jsonl",
        lines(
            {"prompt": "p ", "response": "r" * 9},
            {"prompt": "p ", "response": "r" * 40},
            {"prompt": "p" * 11 + " ", "response": "r"},
        ),
        {"max_length": 99},
        None,
        [
            ("data-left-out", "warning", ["1 of 3", "line 3", "14 tokens, 12 may be used"]),
            ("data-too-long", "warning", ["2 of 3", "12 tokens", "43", "= 99", "is 12", "line 2"]),
        ],
    ),
    "nothing left": (
        "rows.jsonl",
        lines({"prompt": "p" * 20, "response": " r"}),
        {"max_length": 12},
        None,
        [
            ("data-left-out", "error", ["1 of 1"]),
            ("data-too-long", "warning", ["max_length=23", "12 tokens"]),
        ],
    ),
    "all held out": (
        "rows.jsonl",
        lines({"prompt": "p" * 20, "response": " r"}, GOOD),
        {"max_length": 12, "test_share": 0.9},
        None,
        [
            ("data-left-out", "warning", ["1 of 2"]),
            ("data-too-long", "warning", ["1 of 2"]),
            ("data-empty", "error", ["2 rows", "test_share=0"]),
        ],
    ),
    "no template": (
        "rows.jsonl",
        lines({"messages": TURNS}),
        {},
        None,
        [("template-missing", "error", ["1 of 1 rows", "no chat template", "template=FILE.jinja"])],
    ),
    "glued": (
        "rows.jsonl",
        lines({"prompt": "p", "response": "r"}, GOOD),
        {},
        None,
        [("template-missing", "warning", ["1 of 2", "no space between"])],
    ),
    "template forgets": (
        "rows.jsonl",
        lines({"messages": TURNS[:2]}, {"messages": TURNS}),
        {},
        FORGETFUL,
        [("template-wrong", "error", ["1 of 2", "line 2", "<think>", "{% generation %}"])],
    ),
    "template without end": (
        "rows.jsonl",
        lines(GOOD, GOOD),
        {},
        "{% for m in messages %}{{ m.role + ':' + m.content + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}",
        [("template-endless", "warning", ["learn to stop", "all 2"])],
    ),
    "template refuses": (
        "rows.jsonl",
        lines(GOOD, {"prompt": "no", "response": "r"}),
        {},
        "{% if messages[0].content == 'no' %}{{ raise_exception('not that') }}{% endif %}" + CHATML,
        [("template-wrong", "error", ["1 of 2", "line 2: not that"])],
    ),
    "no answer": (
        "rows.jsonl",
        lines({"messages": TURNS}, {"messages": TURNS[:1]}, {"messages": "hi"}),
        {},
        CHATML,
        [
            (
                "data-rows",
                "error",
                ["1 of 3", "no answer of an assistant", "line 2", "roles: user"],
            ),
            ("data-rows", "error", ["1 of 3", "no list", "line 3"]),
        ],
    ),
    "image unseen": (
        "rows.jsonl",
        lines({**GOOD, "image": "a.png"}),
        {},
        None,
        [("data-media", "warning", ["`image` is not used"])],
    ),
    "template file": (
        "t.jinja",
        "{% if %}",
        {"template": "t.jinja", "data": None},
        None,
        [("template-wrong", "error", ["t.jinja", "TemplateSyntaxError"])],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_findings_with_counts_and_lines(tmp_path, monkeypatch, name):
    file, text, options, template, expected = CASES[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    (tmp_path / file).write_text(text, encoding="utf-8")
    given = LoraOptions(**{"data": file, "test_share": 0, **options})
    found = check_data(given, tiny_tokenizer(template), context=12 if name == "too long" else None)
    assert [(f.slug, f.severity) for f in found] == [(s, v) for s, v, _ in expected], found
    for finding, (_, _, parts) in zip(found, expected, strict=True):
        said = f"{finding.what} {finding.why} {finding.fix}"
        assert [part for part in parts if part not in said] == [], finding
        assert isinstance(finding, Finding) and finding.fix


def test_every_kind_of_file_gives_the_same_samples(tmp_path, monkeypatch):
    import datasets
    import pyarrow as pa
    from pyarrow import parquet

    rows = [{"prompt": f"é{i}\n", "response": f"r{i}"} for i in range(12)]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text(lines(*rows), encoding="utf-8-sig")
    (tmp_path / "a.json").write_text(json.dumps(rows), encoding="utf-8")
    (tmp_path / "lines.json").write_text(lines(*rows), encoding="utf-8")
    (tmp_path / "a.csv").write_text(
        "prompt,response\n" + "".join(f'"é{i}\n",r{i}\n' for i in range(12)), encoding="utf-8"
    )
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "1.jsonl").write_text(lines(*rows[:5]), encoding="utf-8")
    parquet.write_table(pa.Table.from_pylist(rows[5:]), tmp_path / "folder" / "2.parquet")
    (tmp_path / "folder" / "test.jsonl").write_text(lines(*rows[:2]), encoding="utf-8")
    table = datasets.Dataset.from_list(rows)
    datasets.DatasetDict(train=table, validation=table.select(range(2))).save_to_disk("saved")
    tokenizer, seen = tiny_tokenizer(), {}
    for name in ("a.jsonl", "a.json", "lines.json", "a.csv", "a.parquet", "folder", "saved"):
        options = LoraOptions(data=name, test_share=0)
        assert check_data(options, tokenizer) == []
        seen[name] = open_data("train", options, tokenizer).tokens.ids.tobytes()
        if name in ("folder", "saved"):
            assert len(open_data("test", options, tokenizer)) == 2  # of their own
    assert len(set(seen.values())) == 1, {name: len(ids) for name, ids in seen.items()}


@pytest.mark.parametrize(
    ("given", "expected"),
    [("all", "all"), ("q_proj", ["q_proj"]), ("q_proj, v_proj", ["q_proj", "v_proj"])],
)
def test_targets_on_a_command_line(given, expected):
    assert LoraOptions(targets=given).targets == expected
