"""Models of the right shape without weights, a tokenizer that fits, and rows that fill a length."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

END = "<end>"  # token 0 of the vocabulary; every other one is a word


@dataclass(frozen=True)
class Size:
    """A model and the batches it is trained with."""

    title: str
    shape: dict
    batch: int
    length: int
    rows: int
    """More than are seen while it is measured: no epoch ends."""

    @property
    def tokens(self):
        """In a step."""
        return self.batch * self.length


_SMOLLM2 = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "rope_theta": 100000.0,
    "max_position_embeddings": 8192,
}
_LLAMA = {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
}
_TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
}
SIZES = {
    "135m": Size("SmolLM2-135M's shape, 16 x 512 tokens", _SMOLLM2, 16, 512, 4096),
    "1b": Size("Llama-3.2-1B's shape, 8 x 1024 tokens", _LLAMA, 8, 1024, 1536),
    "tiny": Size("2 layers of width 64, 4 x 32 tokens", _TINY, 4, 32, 256),
}


def write_model(folder, size, *, dtype="bfloat16"):
    """Config and tokenizer, as a downloaded model has them; weights are drawn by whoever opens it.
    `dtype` is bf16 in the files of both models that these stand for."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-05,
        "dtype": dtype,
        **size.shape,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _make_tokenizer(size.shape["vocab_size"]).save_pretrained(folder)
    return folder


def _make_tokenizer(symbols):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {END: 0, **{f"w{number}": number for number in range(1, symbols)}}
    made = Tokenizer(models.WordLevel(words, unk_token=END))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=END, eos_token=END, pad_token=END
    )


def write_rows(path, size, *, seed=1):
    """Plain text of as many words that each row has exactly `length` tokens with its end."""
    drawn = np.random.default_rng(seed).integers(
        1, size.shape["vocab_size"], (size.rows, size.length - 1)
    )
    with Path(path).open("w", encoding="utf-8") as out:
        for row in drawn.tolist():
            out.write(json.dumps({"text": " ".join(map("w{}".format, row))}) + "\n")
    return Path(path)


def write_pairs(path, size, *, rows, seed=1):
    """Prompts and responses of very unequal lengths: the weight of a micro-batch then matters. Each
    word follows from the one before it, so that there is something to learn."""
    generator = np.random.default_rng(seed)
    symbols = size.shape["vocab_size"]
    with Path(path).open("w", encoding="utf-8") as out:
        for _ in range(rows):
            prompt, response = generator.integers(2, (size.length // 3, size.length // 2))
            start = int(generator.integers(1, 17))
            words = [f"w{1 + (start + 3 * i) % min(symbols - 1, 64)}" for i in range(size.length)]
            row = {
                "prompt": " ".join(words[:prompt]) + " ",
                "response": " ".join(words[prompt : prompt + response]),
            }
            out.write(json.dumps(row) + "\n")
    return Path(path)
