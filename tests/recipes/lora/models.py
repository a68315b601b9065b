"""Folders with small models of random weights, as `save_pretrained` writes them, and rows."""

import json
import random

from tests.recipes.lora.tiny import CHATML, tiny_tokenizer

WORDS = ("a", "cup", "of", "tea", "with", "milk", "please", "two", "plain", "rolls")


def write_model(folder, *, weights=True, tie=False, template=CHATML, **sizes):
    """A Llama that computes in a blink."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer(template)
    config = LlamaConfig(
        **{
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "initializer_range": 0.2,  # so large that adapters have something to change
            "tie_word_embeddings": tie,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>"),
            "pad_token_id": tokenizer.pad_token_id,
        }
        | sizes
    )
    config.save_pretrained(folder)
    if weights:
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write_translator(folder):
    """A T5: an encoder reads, a decoder writes."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write_rows(path, count=40, longest=60):
    """Answers of one word, and of many: very unequal lengths."""
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            length = draw.choice((1, 2, 3, longest // 2, longest))
            answer = " ".join(draw.choices(WORDS, k=max(1, length // 4)))
            row = {"prompt": f"order {number}?", "response": answer}
            file.write(json.dumps(row) + "\n")
    return str(path)


def write_old_model(folder):
    """A GPT-2, whose linear layers keep their weights the other way around."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = tiny_tokenizer()
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "initializer_range": 0.2}
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), **sizes, **ends)
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
