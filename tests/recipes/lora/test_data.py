"""Tokens, labels, packing and weights of the lora recipe, on a tokenizer of single bytes."""

import json
import multiprocessing

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.recipes.lora.data import open_data, token_count
from phalanx.recipes.lora.options import LoraOptions
from phalanx.recipes.lora.packing import pack
from tests.recipes.lora.tiny import CHATML, LLAMA2, MARKED, marked, tiny_tokenizer

TWO_TURNS = {
    "messages": [
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "b."},
        {"role": "user", "content": "c?"},
        {"role": "assistant", "content": "d."},
    ]
}
SHARED = {"conversations": [{"from": "human", "value": "a?"}, {"from": "gpt", "value": "b."}]}
PAIR = {"instruction": "ask", "input": "this", "output": "yes"}


def written(tmp_path, rows, name="rows.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def opened(tmp_path, rows, tokenizer, *, split="train", is_seq2seq=False, **options):
    given = {"data": written(tmp_path, rows), "test_share": 0, "pad_to": 1, **options}
    return open_data(split, LoraOptions(**given), tokenizer, is_seq2seq=is_seq2seq)


def batch_of(data):
    return data.__getitems__(np.arange(len(data)), np.zeros(len(data), np.int64))


@pytest.mark.parametrize(
    ("template", "row", "options", "expected"),
    [
        (
            CHATML,
            TWO_TURNS,
            {},
            "<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\n[[b.<|im_end|>]]\n"
            "<|im_start|>user\nc?<|im_end|>\n<|im_start|>assistant\n[[d.<|im_end|>]]\n",
        ),
        (
            CHATML,
            SHARED,
            {"system": "Be."},
            "<|im_start|>system\nBe.<|im_end|>\n<|im_start|>user\na?<|im_end|>\n"
            "<|im_start|>assistant\n[[b.<|im_end|>]]\n",
        ),
        (LLAMA2, TWO_TURNS, {}, "<s>[INST] a? [/INST][[ b. </s>]]<s>[INST] c? [/INST][[ d. </s>]]"),
        (MARKED, TWO_TURNS, {}, "user:a?assistant:[[b.]]user:c?assistant:[[d.</s>]]"),
        (None, PAIR, {}, "ask\n\nthis[[yes</s>]]"),
        (None, {"text": "all of it"}, {}, "a[[ll of it</s>]]"),
        (LLAMA2, PAIR, {"train_on": "all"}, "<s>[[[INST] ask\n\nthis [/INST] yes </s>]]"),
        (None, {"a": "x ", "b": 7}, {"prompt": "a", "response": "b"}, "x [[7</s>]]"),
    ],
    ids=["turns", "shared", "no-header", "marked", "plain", "text", "all", "named"],
)
def test_only_what_the_assistant_says_is_learned(tmp_path, template, row, options, expected):
    tokenizer = tiny_tokenizer(template)
    batch = batch_of(opened(tmp_path, [row], tokenizer, **options))
    assert marked(tokenizer, batch["input_ids"][0], batch["labels"][0]) == expected
    assert set(batch) == {"input_ids", "labels"}


def test_a_token_across_the_border_is_learned(tmp_path):
    # " y" is one token: it holds the first letter of the response.
    tokenizer = tiny_tokenizer(merges=[("Ġ", "y")])
    data = opened(tmp_path, [{"prompt": "ask ", "response": "yes"}], tokenizer)
    batch = batch_of(data)
    assert marked(tokenizer, batch["input_ids"][0], batch["labels"][0]) == "ask[[ yes</s>]]"
    given, wanted = data.parts(0)
    assert tokenizer.decode(given) == "ask" and tokenizer.decode(wanted) == " yes</s>"


def test_a_seq2seq_model_reads_the_prompt_and_writes_the_response(tmp_path):
    tokenizer = tiny_tokenizer()
    rows = [{"prompt": "ab", "response": "c"}, {"prompt": "d", "response": "efg"}]
    batch = batch_of(opened(tmp_path, rows, tokenizer, is_seq2seq=True))
    assert tokenizer.batch_decode(batch["input_ids"]) == ["ab", "d<pad>"]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert marked(tokenizer, batch["labels"][1], batch["labels"][1]) == "[[efg</s>]]"
    assert token_count(batch, is_seq2seq=True) == 2 + 4


def test_samples_are_cut_padded_weighed_and_survive_a_loader(tmp_path):
    tokenizer = tiny_tokenizer()
    rows = [
        {"prompt": "p", "response": "r" * 3},
        {"prompt": "p" * 20, "response": "never seen"},
        {"prompt": "p" * 10, "response": "r" * 30},
    ]
    data = opened(tmp_path, rows, tokenizer, max_length=15, pad_to=8)
    assert len(data) == 2  # nothing is left of the response of the second
    batch = batch_of(data)
    assert batch["input_ids"].shape == (2, 15)  # not 16: a sample has 15 at most
    assert token_count(batch) == 4 + 5
    alone = data.__getitems__(np.array([0]), np.array([0]))
    assert alone["input_ids"].shape == (1, 8) and token_count(alone) == 4
    with multiprocessing.get_context("fork").Pool(1) as pool:  # it is sent there, and forked
        assert pool.apply(_labels, (data,)) == batch["labels"].tolist()


def _labels(data):
    return batch_of(data)["labels"].tolist()


def test_held_out_rows_are_spread_and_disjoint(tmp_path):
    rows = [{"prompt": "p ", "response": f"{i:03}"} for i in range(100)]
    split = {
        name: {tuple(ids) for ids in batch_of(data)["input_ids"].tolist()}
        for name in ("train", "test")
        for data in [opened(tmp_path, rows, tiny_tokenizer(), split=name, test_share=0.25)]
    }
    assert (len(split["train"]), len(split["test"])) == (75, 25)
    assert not split["train"] & split["test"]


@given(st.lists(st.integers(1, 20), max_size=60), st.integers(20, 40))
def test_packing_is_first_fit(lengths, room):
    rows: list[list[int]] = []
    for sample, length in enumerate(lengths):
        fits = (r for r in rows if sum(lengths[s] for s in r) + length <= room)
        row = next(fits, None)
        if row is None:
            rows.append(row := [])
        row.append(sample)
    packed = pack(np.array(lengths, np.int64), room)
    assert [packed.of(i).tolist() for i in range(len(packed))] == rows


def test_packed_rows_hold_every_token_once_in_its_own_segment(tmp_path):
    tokenizer = tiny_tokenizer()
    rows = [{"prompt": "p" * (i % 7 + 1), "response": chr(97 + i) * (i % 5 + 1)} for i in range(20)]
    for train_on in ("response", "all"):
        loose = opened(tmp_path, rows, tokenizer, train_on=train_on)
        packed = opened(tmp_path, rows, tokenizer, train_on=train_on, packing=True, max_length=32)
        batch = batch_of(packed)
        assert len(packed) < len(loose) / 2
        # Nothing is predicted across a border: the same tokens are learned as without packing.
        assert token_count(batch) == token_count(batch_of(loose))
        found = []
        for ids, labels, segments, positions in zip(
            *(batch[n] for n in ("input_ids", "labels", "segments", "position_ids")), strict=True
        ):
            count = int(segments.max())
            assert torch.equal(segments[segments > 0], segments[segments > 0].sort().values)
            for segment in range(1, count + 1):
                mine = segments == segment
                assert positions[mine].tolist() == list(range(int(mine.sum())))
                found.append((ids[mine].tolist(), labels[mine].tolist()))
            assert (ids[segments == 0] == tokenizer.pad_token_id).all()
            assert (labels[segments == 0] == -100).all()
        expected = [loose.__getitems__(np.array([i]), None) for i in range(20)]
        assert sorted(found) == sorted(
            (one["input_ids"][0].tolist(), one["labels"][0].tolist()) for one in expected
        )


def test_tokens_are_kept_until_what_they_depend_on_changes(tmp_path, monkeypatch):
    from phalanx.recipes.lora import tokens

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tokens, "_KEPT_FROM", 1)
    tokenizer = tiny_tokenizer()
    rows = [{"prompt": "pq", "response": "one"}]
    first = batch_of(opened(tmp_path, rows, tokenizer))
    tokens._IN_THIS_PROCESS.clear()
    with monkeypatch.context() as patch:
        patch.setattr(tokens, "_make", None)  # nothing is made: what is kept is read
        options = LoraOptions(data=str(tmp_path / "rows.jsonl"), test_share=0, pad_to=1)
        again = batch_of(open_data("train", options, tokenizer))
    assert torch.equal(again["labels"], first["labels"])
    changed = batch_of(opened(tmp_path, [{"prompt": "pq", "response": "other"}], tokenizer))
    assert marked(tokenizer, changed["input_ids"][0], changed["labels"][0]) == "pq[[other</s>]]"
    everything = LoraOptions(**{**options.model_dump(), "train_on": "all"})
    assert token_count(batch_of(open_data("train", everything, tokenizer))) == len("qother") + 1
