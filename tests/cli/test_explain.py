"""`phalanx explain` of a word: three sentences that a new person understands."""

import re

import pytest

from phalanx.cli.main import run
from phalanx.job.keys import job_keys
from phalanx.verbs.terms import _ALSO, TERMS, find_term


@pytest.mark.parametrize("term", TERMS)
def test_three_sentences(term):
    sentences = re.split(r"(?<=\.) (?=[A-Z`0-9])", TERMS[term].strip())
    assert len(sentences) == 3, sentences
    assert all(sentence.endswith(".") for sentence in sentences)


@pytest.mark.parametrize("term", TERMS)
def test_the_keys_that_are_named_are_keys(term):
    for word in re.findall(r"`([a-z_]+(?:\.[a-z_]+)?)[=`:]", TERMS[term]):
        choices = {"single", "fsdp", "deepspeed", "ddp", "resume", "exact", "fast", "auto", "logs"}
        assert word in {*job_keys(), *choices}, word


def test_other_names_lead_to_a_term():
    assert set(_ALSO.values()) <= set(TERMS)
    assert find_term("Gradient_Accumulation")[0] == "accumulation"
    assert find_term("warmup") == find_term("warm-up")
    assert find_term("flux capacitor") is None


def test_a_word_and_a_section_of_the_same_name(capsys):
    assert run(["explain", "ema"]) == 0
    out = capsys.readouterr().out
    assert "moving average" in out
    assert "ema.decay" in out


def test_a_word_of_two(capsys):
    assert run(["explain", "linear", "scaling"]) == 0
    assert "k times as large" in " ".join(capsys.readouterr().out.split())


def test_the_list_of_words(capsys):
    assert run(["explain", "--terms"]) == 0
    out = capsys.readouterr().out
    assert [term for term in TERMS if term not in out] == []
