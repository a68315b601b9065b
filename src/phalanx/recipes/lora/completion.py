"""What the model writes for a few test rows: greedy, as long as the answer or an end token says."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from phalanx.recipe import Sample
from phalanx.recipes.lora.options import LoraOptions


def complete(
    model: nn.Module, data: Any, tokenizer: Any, options: LoraOptions, *, is_seq2seq: bool
) -> list[Sample]:
    """One row at a time, so that nothing is padded; every rank writes the same tokens."""
    if not hasattr(data, "parts"):  # images and sounds are not shown as text
        return []
    network: Any = getattr(model, "module", model)
    device = next(network.parameters()).device
    made = []
    for index in range(min(options.completions, data.num_samples)):
        prompt, answer = data.parts(index)
        given = torch.tensor([prompt], device=device)
        written = network.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=options.max_new_tokens,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )[0]
        written = written if is_seq2seq else written[len(prompt) :]
        texts = (
            tokenizer.decode(ids, skip_special_tokens=True).strip()
            for ids in (prompt, written.tolist(), answer)
        )
        made.append(Sample(*texts))
    return made
