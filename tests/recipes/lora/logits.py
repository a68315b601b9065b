"""What a model of transformers says, to compare a trained network with the files made of it."""

import torch

from phalanx.recipe.loading import load_recipe
from tests.ranks.runs import weights

TOKENS = torch.arange(24).reshape(2, 12) * 7 % 200


def said(network, tokens=TOKENS):
    """Scores for some tokens."""
    network.eval()
    given = {"decoder_input_ids": tokens} if network.config.is_encoder_decoder else {}
    with torch.no_grad():
        return network(input_ids=tokens, **given).logits


def trained_network(run, options, dtype, name="latest"):
    """The network of a run: pretrained weights where they lie, the rest from a checkpoint."""
    from safetensors.torch import load_file

    recipe = load_recipe("lora", options)
    network = recipe.model().to(dtype)
    stored = {n: load_file(s.file)[s.name] for n, s in recipe.weights().items()}
    for state in (stored, weights(run, name)):  # what learns may have been begun from files too
        assert not network.load_state_dict(state, strict=False).unexpected_keys
    return network


def from_peft(base, folder, dtype, tokens=None):
    """What PEFT makes of a model and an adapter. `tokens`: how many there are with added ones."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    if tokens is not None:
        network.resize_token_embeddings(tokens, mean_resizing=False)
    return PeftModel.from_pretrained(network, folder, autocast_adapter_dtype=False)
