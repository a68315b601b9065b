"""A message is printed in the reader's language: matched, filled in, never lost."""

import os
import random
import re

import pytest

from phalanx.errors import Finding, UserError
from phalanx.output import console, language
from phalanx.output.language import Catalogue, split_outside_code

HOLE = re.compile(r"\{(\d+)(~?)\}")
SMALL = Catalogue(
    {
        "`{0}` is not a key of a job{1}": "`{0}` 不是任务的键{1}",
        " (did you mean `{0}`?)": "（是不是想写 `{0}`？）",
        "{0} of {1}": "{1} 中的 {0}",
        "{0} rank{1~} on {2}": "{2} 上 {0} 个 rank",
        "no GPU here": "这里没有 GPU",
        "kept: {0}": "保留：{0}",
        "memory": "内存",
        "One pass over the data": "把数据过一遍",
        "write {{x}} into {0}": "把 {{x}} 写进 {0}",
    }
)


def test_values_are_put_into_the_translation():
    assert SMALL.translate("3 of 8") == "8 中的 3"
    assert SMALL.translate("2 ranks on cpu") == "cpu 上 2 个 rank"
    assert SMALL.translate("1 rank on cpu") == "cpu 上 1 个 rank"


def test_a_value_that_is_a_message_is_translated_too():
    assert SMALL.translate("kept: no GPU here") == "保留：这里没有 GPU"
    said = "`lrr` is not a key of a job (did you mean `lr`?)"
    assert SMALL.translate(said) == "`lrr` 不是任务的键（是不是想写 `lr`？）"


def test_parts_are_translated_where_the_whole_is_not_known():
    assert SMALL.translate("kept: 3; no GPU here") == "保留：3；这里没有 GPU"
    assert SMALL.translate("One pass over the data. no GPU here.") == "把数据过一遍。这里没有 GPU。"


def test_a_value_does_not_reach_over_two_messages():
    both = "22.4 of 23.5 GiB available; /dev/shm 23.5 GiB free"
    known = {"{0} of {1} GiB available": "{1} 中可用 {0}", "{0} of {1} GiB free": "{1} 中空闲 {0}"}
    assert Catalogue(known).translate(both) == "23.5 中可用 22.4；/dev/shm 23.5 GiB free"


def test_what_is_not_known_stays_english():
    foreign = "RuntimeError: the size of tensor a must match the size of tensor b"
    assert SMALL.translate(foreign) == foreign
    assert (
        SMALL.translate("a page\nof several lines: kept: 3") == "a page\nof several lines: kept: 3"
    )


def test_one_word_is_only_translated_as_a_label():
    assert SMALL.label("memory") == "内存"
    assert SMALL.translate("memory") == "memory"  # a value, a path, a name of somebody's


def test_braces_of_a_message_are_no_holes():
    assert SMALL.translate("write {x} into job.yaml") == "把 {x} 写进 job.yaml"


def test_code_is_not_cut():
    assert split_outside_code("see `a; b`; then", "; ") == ["see `a; b`", "then"]


def test_every_template_with_values_is_found_again():
    """Whatever stands in the holes: what was filled in comes out in the translation."""
    chosen = random.Random(7)
    whole = language._catalogue("zh")
    entries = language.json.loads(
        (language.resources.files("phalanx") / "languages" / "zh.json").read_text("utf-8")
    )
    missed = []
    for english in entries:
        values = {
            n: f"<{chosen.randrange(10**6)}>" for n, mark in HOLE.findall(english) if not mark
        }
        text = HOLE.sub(lambda h, v=values: "" if h[2] else v[h[1]], english)
        text = text.replace("{{", "{").replace("}}", "}")
        shown = whole.label(text)
        is_same = entries[english].replace("{{", "{").replace("}}", "}") == english
        if not all(value in shown for value in values.values()):
            missed.append(f"{text} -> {shown}")
        elif shown == text and not is_same and "\n" not in text and HOLE.search(english):
            missed.append(f"{text} stays English")
    assert not missed, "\n".join(missed)


def test_the_language_is_the_option_s_the_variable_s_or_the_locale_s(monkeypatch):
    for name in ("PHALANX_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    assert language.current() == "en"
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert language.current() == "zh"
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert language.current() == "en"
    monkeypatch.setenv("PHALANX_LANG", "zh-Hans")
    assert language.current() == "zh"
    language.use("en")
    assert os.environ["PHALANX_LANG"] == "en"


def test_an_unknown_language_is_a_finding(monkeypatch):
    monkeypatch.setenv("PHALANX_LANG", "en")
    with pytest.raises(UserError) as caught:
        language.use("tlh")
    assert caught.value.findings[0].slug == "unknown-language"


def test_findings_and_tables_are_printed_in_it_and_json_is_not(monkeypatch, capsys):
    monkeypatch.setenv("PHALANX_LANG", "zh")
    finding = Finding(
        slug="unknown-key",
        what="`lrr` is not a key of a job (did you mean `lr`?)",
        why="the keys here are lr",
        fix="optimizer.lr=1",
    )
    console.show_findings([finding])
    console.table([("memory", "no NVIDIA driver")], header=("", "because"))
    console.say_json(finding.to_json())
    out, err = capsys.readouterr()
    assert "错误[unknown-key]: `lrr` 不是任务的键（是不是想写 `lr`？）" in err
    assert "处理: optimizer.lr=1" in err
    assert "原因" in out and "内存" in out and "没有 NVIDIA 驱动" in out
    assert "is not a key of a job" in out
