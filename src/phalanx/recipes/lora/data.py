"""The data of the lora recipe: micro-batches of tokens, from rows of text.

rows.py reads rows, columns.py makes samples of them, template.py tokens, tokens.py flat arrays;
packing.py puts several into a row, media.py adds images and sounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from phalanx.recipe import Split, UserError
from phalanx.recipes.lora.media import MediaData
from phalanx.recipes.lora.options import LoraOptions
from phalanx.recipes.lora.packing import Packed, pack
from phalanx.recipes.lora.rows import find_sources, is_held_out
from phalanx.recipes.lora.template import Template
from phalanx.recipes.lora.tokens import IGNORED, Tokens, tokenize


def open_data(
    split: Split,
    options: LoraOptions,
    tokenizer: Any,
    *,
    context: int | None = None,
    processor: Any = None,
    is_seq2seq: bool = False,
) -> TextData | MediaData:
    """The samples of a split. `context`: how many tokens the model takes at most. `processor`: of a
    model that sees or hears; data without a column for that needs none."""
    template = Template(tokenizer, options, is_seq2seq=is_seq2seq)
    if template.findings:
        raise UserError(template.findings)
    sources = find_sources(options)
    source = sources.test if split == "test" and sources.test else sources.train
    share = 0.0 if sources.test else options.test_share
    limit = longest(options, context)
    if processor is not None:
        media = MediaData.open(source, options, processor, template, limit)
        if media is not None:
            return media.only(_chosen(media.rows, split, share, is_own=sources.test is not None))
    tokens = tokenize(source, options, template, limit)
    chosen = _chosen(tokens.rows, split, share, is_own=sources.test is not None)
    return TextData(
        tokens,
        chosen,
        pad_to=options.padding_step(limit),
        limit=limit,
        pad_id=pad_id_of(tokenizer),
        packed=pack(tokens.lengths[chosen], limit) if options.packing else None,
    )


def longest(options: LoraOptions, context: int | None) -> int:
    """How many tokens a sample may have."""
    return min(options.max_length, context) if context else options.max_length


def pad_id_of(tokenizer: Any) -> int:
    """What fills rows up; nothing looks at it."""
    given = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(token for token in given if token is not None)


def token_count(batch: dict[str, Tensor], *, is_seq2seq: bool = False) -> int:
    """How many tokens of a micro-batch are learned, which is what its loss is divided by. Nothing
    predicts the first token of a row, but a decoder of its own is given one before it."""
    labels = batch["labels"]
    return int(((labels if is_seq2seq else labels[:, 1:]) != IGNORED).sum())


def _chosen(rows: np.ndarray, split: Split, share: float, *, is_own: bool) -> np.ndarray:
    """The samples of a split by their places, where the rows are of both."""
    if is_own:
        return np.arange(len(rows))
    held_out = np.fromiter((is_held_out(row, share) for row in rows.tolist()), bool, len(rows))
    return np.flatnonzero(held_out if split == "test" else ~held_out)


class TextData:
    """Samples or packed rows of tokens, padded on the right."""

    def __init__(
        self,
        tokens: Tokens,
        chosen: np.ndarray,
        *,
        pad_to: int,
        limit: int,
        pad_id: int,
        packed: Packed | None,
    ) -> None:
        self.tokens = tokens
        self.chosen = chosen
        self.packed = packed
        self._pad_to, self._limit, self._pad_id = pad_to, limit, pad_id

    def __len__(self) -> int:
        return len(self.chosen) if self.packed is None else len(self.packed)

    def __getitems__(self, ids: np.ndarray, keys: np.ndarray | None = None) -> dict[str, Tensor]:
        if self.tokens.target is not None:
            return self._pairs(ids)
        rows = [self._members(row) for row in ids.tolist()]
        lengths = [int(self.tokens.lengths[row].sum()) for row in rows]
        shape = len(rows), self._padded(max(lengths))
        input_ids = np.full(shape, self._pad_id, np.int64)
        labels = np.full(shape, IGNORED, np.int64)
        segments, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for line, row in enumerate(rows):
            stop = 0
            for number, sample in enumerate(row.tolist(), 1):
                tokens, learned = self._sample(sample)
                start, stop = stop, stop + len(tokens)
                input_ids[line, start:stop] = tokens
                labels[line, start:stop] = np.where(learned, tokens, IGNORED)
                segments[line, start:stop] = number
                positions[line, start:stop] = np.arange(len(tokens))
        batch = {"input_ids": input_ids, "labels": labels}
        if self.packed is not None:
            batch |= {"segments": segments, "position_ids": positions}
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    def parts(self, index: int) -> tuple[list[int], list[int]]:
        """The tokens before the first answer of a sample, and those of the answer: what a model is
        given and what it should make of it. Samples are counted without packing."""
        sample = int(self.chosen[index])
        tokens, learned = self._sample(sample)
        if self.tokens.target is not None:
            return tokens.tolist(), self._target(sample).tolist()
        start = int(np.argmax(learned))
        rest = np.flatnonzero(~learned[start:])
        stop = start + int(rest[0]) if len(rest) else len(tokens)
        return tokens[:start].tolist(), tokens[start:stop].tolist()

    @property
    def num_samples(self) -> int:
        """Without packing."""
        return len(self.chosen)

    def _pairs(self, ids: np.ndarray) -> dict[str, Tensor]:
        samples = self.chosen[ids].tolist()
        read = [self._sample(sample)[0] for sample in samples]
        written = [self._target(sample) for sample in samples]
        width, height = (self._padded(max(map(len, side))) for side in (read, written))
        input_ids = np.full((len(samples), width), self._pad_id, np.int64)
        mask = np.zeros((len(samples), width), np.int64)
        labels = np.full((len(samples), height), IGNORED, np.int64)
        for line, (source, target) in enumerate(zip(read, written, strict=True)):
            input_ids[line, : len(source)] = source
            mask[line, : len(source)] = 1
            labels[line, : len(target)] = target
        batch = {"input_ids": input_ids, "labels": labels, "attention_mask": mask}
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    def _members(self, row: int) -> np.ndarray:
        """The samples of a row."""
        return self.chosen[[row] if self.packed is None else self.packed.of(row)]

    def _sample(self, sample: int) -> tuple[np.ndarray, np.ndarray]:
        part = slice(self.tokens.starts[sample], self.tokens.starts[sample + 1])
        return self.tokens.ids[part], self.tokens.learned[part]

    def _target(self, sample: int) -> np.ndarray:
        assert self.tokens.target is not None and self.tokens.target_starts is not None
        starts = self.tokens.target_starts
        return self.tokens.target[starts[sample] : starts[sample + 1]]

    def _padded(self, length: int) -> int:
        return max(length, min(self._limit, -(-length // self._pad_to) * self._pad_to))
