"""Causal models of transformers, compiled: attention is told that it is causal."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from phalanx.recipe import attend_causally

MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            n_layer=2,
            n_embd=32,
            n_head=2,
            vocab_size=50,
            bos_token_id=1,
            eos_token_id=2,
        )
    ),
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=2,
            hidden_size=32,
            intermediate_size=32,
            num_attention_heads=2,
            num_key_value_heads=1,
            vocab_size=50,
        )
    ),
}


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(0)
    return MODELS[request.param]().eval()


def masks_of(model, tokens):
    """Of each attention in the compiled code: whether it has a mask, whether it is causal."""
    found = []

    def look(graph, _):
        for node in graph.graph.nodes:
            if "scaled_dot_product_attention" in str(node.target):
                found.append((node.kwargs["attn_mask"] is not None, node.kwargs["is_causal"]))
        return graph

    torch._dynamo.reset()
    logits = torch.compile(model, backend=look)(tokens, use_cache=False).logits
    return found, logits


def test_compiled_attention_has_no_mask_and_the_same_answer(model):
    tokens = torch.randint(50, (2, 12))
    before, expected = masks_of(model, tokens)
    assert before == [(True, False)] * 2, "transformers leaves masks out by itself now"
    attend_causally(model)
    after, logits = masks_of(model, tokens)
    assert after == [(False, True)] * 2
    torch.testing.assert_close(logits, expected)


def test_a_mask_that_is_given_is_used(model):
    tokens, mask = torch.randint(3, 50, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    mask[0, :5] = 0
    given = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(tokens, **given)
    attend_causally(model)
    assert torch.equal(model.generate(tokens, **given), expected)
