"""A tokenizer of single bytes and chat templates, made in code: what is learned can be read off."""

import numpy as np

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (  # no header for answers
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + "
    "' [/INST]' }}{% else %}{{ ' ' + m.content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
FORGETFUL = (  # thoughts of earlier answers are dropped, as Qwen3 does
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}"
    "{{ m['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{% for m in messages %}{{ m['role'] + ':' }}{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }}{% if loop.last %}{{ eos_token }}{% endif %}{% endgeneration %}"
    "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
)


def tiny_tokenizer(template=None, *, also=(), merges=()):
    """One token a byte, but for `merges`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *("".join(merge) for merge in merges)]
    vocabulary = {word: i for i, word in enumerate(words)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", *also])
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        chat_template=template,
    )


def marked(tokenizer, ids, labels):
    """The text with [[ ]] around what is learned."""
    ids, labels = np.asarray(ids), np.asarray(labels)
    learned = labels != -100
    assert (labels[learned] == ids[learned]).all()
    edges = np.flatnonzero(np.diff(learned.astype(int), prepend=0, append=0))
    parts, done = [], 0
    for start, stop in edges.reshape(-1, 2):
        parts += [tokenizer.decode(ids[done:start]), f"[[{tokenizer.decode(ids[start:stop])}]]"]
        done = stop
    return "".join([*parts, tokenizer.decode(ids[done:])])
