"""Images and sounds through a processor, to a model of random weights that really learns."""

import json
import wave

import numpy as np
import pytest
import torch

from phalanx.recipe import UserError
from phalanx.recipes.lora.check import check_data
from phalanx.recipes.lora.data import open_data, token_count
from phalanx.recipes.lora.options import LoraOptions
from tests.recipes.lora.tiny import marked, tiny_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m.role + ':' }}{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% else %}{{ '<PLACE>' }}{% endif %}{% endfor %}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
SMALL = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def seeing():
    """A model of the LLaVA kind with its processor."""
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokenizer = tiny_tokenizer(also=["<image>"])
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    size = {"height": 8, "width": 8}
    images = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size=size)
    processor = LlavaProcessor(
        images,
        tokenizer,
        patch_size=4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<image>",
        chat_template=TEMPLATE.replace("<PLACE>", "<image>"),
    )
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**SMALL, image_size=8, patch_size=4),
        text_config=LlamaConfig(**SMALL, vocab_size=len(tokenizer)),
        image_token_index=image_id,
        vision_feature_layer=-1,
    )
    return LlavaForConditionalGeneration(config), processor


def hearing():
    """A model of the Qwen2-Audio kind with its processor."""
    from transformers import (
        Qwen2AudioConfig,
        Qwen2AudioEncoderConfig,
        Qwen2AudioForConditionalGeneration,
        Qwen2AudioProcessor,
        Qwen2Config,
        WhisperFeatureExtractor,
    )

    tokenizer = tiny_tokenizer(also=["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"])
    sounds = WhisperFeatureExtractor(feature_size=4, chunk_length=1, sampling_rate=1600, n_fft=160)
    processor = Qwen2AudioProcessor(
        sounds, tokenizer, chat_template=TEMPLATE.replace("<PLACE>", "<|AUDIO|>")
    )
    config = Qwen2AudioConfig(
        audio_config=Qwen2AudioEncoderConfig(
            num_mel_bins=4,
            encoder_layers=1,
            encoder_attention_heads=2,
            encoder_ffn_dim=32,
            d_model=16,
            max_source_positions=5,
        ),
        text_config=Qwen2Config(**SMALL, num_key_value_heads=2, vocab_size=len(tokenizer)),
        audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
    )
    return Qwen2AudioForConditionalGeneration(config), processor


def writing_down():
    """A model of the Whisper kind with its processor: an encoder hears, a decoder writes."""
    from transformers import (
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperProcessor,
    )

    tokenizer = tiny_tokenizer()
    sounds = WhisperFeatureExtractor(feature_size=4, chunk_length=1, sampling_rate=1600, n_fft=160)
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=4,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=5,
        max_target_positions=32,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
    )
    return WhisperForConditionalGeneration(config), WhisperProcessor(sounds, tokenizer)


def write_image(path):
    from PIL import Image

    Image.fromarray(np.arange(12 * 9 * 3, dtype=np.uint8).reshape(12, 9, 3)).save(path)


def write_sound(path):
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(400)  # a quarter of what the model wants
        sound.writeframes((np.sin(np.arange(300)) * 9000).astype("<i2").tobytes())


@pytest.mark.parametrize(
    ("make", "column", "write", "name", "tensor"),
    [
        (seeing, "image", write_image, "a.png", "pixel_values"),
        (hearing, "audio", write_sound, "a.wav", "input_features"),
    ],
)
def test_a_model_learns_from_what_it_sees_or_hears(tmp_path, make, column, write, name, tensor):
    torch.manual_seed(0)
    model, processor = make()
    tokenizer = processor.tokenizer
    (tmp_path / "media").mkdir()
    write(tmp_path / "media" / name)
    rows = [
        {"prompt": "what?", "response": "a cup", column: f"media/{name}"},
        {"prompt": "and now, what is it?", "response": "tea", column: f"media/{name}"},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = LoraOptions(data=str(file), test_share=0, pad_to=8)
    assert check_data(options, tokenizer, processor=processor) == []
    data = open_data("train", options, tokenizer, processor=processor)
    batch = data.__getitems__(np.arange(2), np.zeros(2, np.int64))
    texts = [
        marked(tokenizer, *pair) for pair in zip(batch["input_ids"], batch["labels"], strict=True)
    ]
    assert "what?</s>assistant:[[a cup</s>]]<pad>" in texts[0]
    assert "is it?</s>assistant:[[tea</s>]]" in texts[1]
    assert token_count(batch) == 6 + 4 and len(batch[tensor]) == 2
    loss = model(**batch).loss
    loss.backward()
    tower = [p.grad for n, p in model.named_parameters() if "tower" in n and p.grad is not None]
    assert torch.isfinite(loss) and any(float(grad.abs().sum()) > 0 for grad in tower)

    (tmp_path / "media" / name).write_bytes(b"broken")
    with pytest.raises(UserError) as error:
        data.__getitems__(np.array([1]), np.array([0]))
    assert error.value.findings[0].slug == "data-media" and "line 2" in str(error.value)
    found = check_data(options, tokenizer, processor=processor)
    assert [f.slug for f in found] == ["data-media"] * 2


def test_a_model_writes_down_what_it_hears(tmp_path):
    model, processor = writing_down()
    write_sound(tmp_path / "a.wav")
    loud = np.ones(900).tolist()
    rows = [{"audio": "a.wav", "text": "tea"}, {"audio": loud, "text": "coffee"}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    options = LoraOptions(data=str(tmp_path / "rows.json"), test_share=0, pad_to=4)
    given = {"processor": processor, "is_seq2seq": True}
    assert check_data(options, processor.tokenizer, **given) == []
    data = open_data("train", options, processor.tokenizer, **given)
    batch = data.__getitems__(np.arange(2), np.zeros(2, np.int64))
    assert batch["labels"].shape == (2, 8) and "input_ids" not in batch
    assert marked(processor.tokenizer, *[batch["labels"][1][:7]] * 2) == "[[coffee</s>]]"
    assert token_count(batch, is_seq2seq=True) == 4 + 7
    model(**batch).loss.backward()
    assert float(model.model.encoder.conv1.weight.grad.abs().sum()) > 0
