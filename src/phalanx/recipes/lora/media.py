"""Samples with an image or a sound, for models that have a processor.

Decoding and processing happen when a sample is asked for, in loader processes. What the processor
returns beside tokens (pixel_values, input_features, ...) goes to the model as it is.
"""

from __future__ import annotations

import io
import wave
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phalanx.recipe import Finding, UserError
from phalanx.recipes.lora import hub
from phalanx.recipes.lora.columns import Columns, Message, Sample, as_messages
from phalanx.recipes.lora.options import LoraOptions
from phalanx.recipes.lora.rows import Row, Source, unit_of
from phalanx.recipes.lora.spans import Refused, Rendered
from phalanx.recipes.lora.template import Encoded, Template
from phalanx.recipes.lora.tokens import IGNORED, Tally, read_samples

_SOUNDS = ("audio", "sound", "speech")


class UnreadableError(Exception):
    """An image or a sound that cannot be read, or a sample that the processor cannot take."""


@dataclass(frozen=True)
class MediaData:
    """Samples with an image or a sound each, processed when they are asked for."""

    samples: list[tuple[int, Row, Sample]]
    columns: Columns
    tally: Tally
    processor: Any
    template: Template
    options: LoraOptions
    limit: int

    @classmethod
    def open(
        cls, source: Source, options: LoraOptions, processor: Any, template: Template, limit: int
    ) -> MediaData | None:
        """None if the rows have no column with an image or a sound."""
        tally, samples, columns = Tally(), [], None
        for columns, some in read_samples(source, options, tally, f"`{source.name}`"):
            if columns.media is None:
                return None
            for index, row, sample in some:
                if sample.media is None:
                    tally.add(row, f"have no `{columns.media}`", "")
                else:
                    samples.append((index, row, sample))
        if columns is None:
            return None
        if options.template is None:
            template.text = getattr(processor, "chat_template", None) or template.text
        return cls(samples, columns, tally, processor, template, options, limit)

    @property
    def rows(self) -> np.ndarray:
        """Which row each sample was, from 0."""
        return np.array([index for index, _, _ in self.samples], np.int64)

    def only(self, chosen: np.ndarray) -> MediaData:
        """Some of the samples."""
        return replace(self, samples=[self.samples[i] for i in chosen.tolist()])

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, ids: np.ndarray, keys: np.ndarray | None = None) -> dict[str, Tensor]:
        made = []
        for index in ids.tolist():
            try:
                made.append(self.load(index))
            except UnreadableError as error:
                raise UserError(self.unreadable(index, error)) from error
        return self._together(made)

    def load(self, index: int) -> dict[str, np.ndarray]:
        """One sample: `labels` and all that the processor returns; raises `UnreadableError`."""
        _, row, sample = self.samples[index]
        read = _read_sound if self.is_sound else _read_image
        try:
            media = read(sample.media, Path(row.file).parent, self._sampling_rate)
        except (OSError, ValueError, EOFError, wave.Error) as error:
            raise UnreadableError(f"{type(error).__name__}: {error}") from error
        made = (
            self._listen(sample, media) if self.template.is_seq2seq else self._read(sample, media)
        )
        if not (made["labels"] != IGNORED).any():
            raise UnreadableError(f"nothing of the response is left in {self.limit} tokens")
        return made

    def unreadable(self, index: int, error: UnreadableError) -> Finding:
        row = self.samples[index][1]
        place = f"{unit_of(row.file)} {row.number}"
        return Finding(
            slug="data-media",
            what=f"`{self.columns.media}` of {place} cannot be used: {error}",
            why=f"{row.file}, {place}; paths are relative to the file they stand in",
            fix="mend the row, or raise options.max_length if the sample is cut",
        )

    @property
    def is_sound(self) -> bool:
        """By the column's name, and by what the model can take."""
        name = str(self.columns.media).lower()
        return name.startswith(_SOUNDS) or not hasattr(self.processor, "image_processor")

    @property
    def _sampling_rate(self) -> int | None:
        extractor = getattr(self.processor, "feature_extractor", None)
        return getattr(extractor, "sampling_rate", None)

    def _process(self, text: str | None, media: Any) -> dict[str, np.ndarray]:
        given: dict[str, Any] = {"audio" if self.is_sound else "images": media}
        if self.is_sound and self._sampling_rate:
            given["sampling_rate"] = self._sampling_rate
        if text is not None:
            given["text"] = [text]
            begins = self.template.tokenizer.bos_token
            if begins and text.startswith(begins):  # the template wrote it: once is enough
                given["add_special_tokens"] = False
        made = self.processor(**given, return_tensors="pt")
        return {name: torch.as_tensor(value).numpy() for name, value in made.items()}

    def _read(self, sample: Sample, media: Any) -> dict[str, np.ndarray]:
        """For a decoder that reads images and sounds among the tokens. They stand before the first
        answer: counted from the end, answers are where they are in the text alone."""
        rendered = self._render(sample)
        encoded = self.template.tokenize([rendered], adds_special=False)[0]
        if isinstance(encoded, Refused):
            raise UnreadableError(f"the conversation: {encoded.wrong} {encoded.detail}")
        assert isinstance(rendered, Rendered)
        made = self._process(rendered.text, media)
        ids = made["input_ids"][0].astype(np.int64)
        learned = _from_end(encoded, ids)
        made["labels"] = np.where(learned, ids, IGNORED)[None]
        shape = made["input_ids"].shape
        return {n: v[:, : self.limit] if v.shape == shape else v for n, v in made.items()}

    def _listen(self, sample: Sample, media: Any) -> dict[str, np.ndarray]:
        """For an encoder that reads the image or sound, and a decoder that writes."""
        encoded = self.template.encode([sample])[0]
        if isinstance(encoded, Refused):
            raise UnreadableError(f"{encoded.wrong} {encoded.detail}")
        made = self._process(sample.prompt or None, media)
        made["labels"] = np.array([(encoded.target or [])[: self.limit]], np.int64)
        return made

    def _render(self, sample: Sample) -> Rendered | Refused:
        kind = "audio" if self.is_sound else "image"
        token = str(getattr(self.processor, f"{kind}_token", ""))
        if self.template.text is None:
            head = sample.prompt or ""
            if token and token not in head:
                head = f"{token}\n{head}"
            text = head + sample.response + (self.template.tokenizer.eos_token or "")
            return Rendered(text, [(len(head), len(text))])
        messages = _with_media(as_messages(sample, self.options.system), kind)
        rendered = self.template.render([Sample(messages)])[0]
        if isinstance(rendered, Rendered) and token not in rendered.text:
            return Refused(f"leave no place for `{token}`", "the chat template does not write it")
        return rendered

    def _together(self, made: list[dict[str, np.ndarray]]) -> dict[str, Tensor]:
        """Tokens padded on the right; what belongs to images and sounds one after the other."""
        pad_id = self.template.tokenizer.pad_token_id or 0
        width = max(one["labels"].shape[1] for one in made)
        to = self.options.padding_step(self.limit)
        width = max(width, min(self.limit, -(-width // to) * to))
        batch = {}
        for name in made[0]:
            values = [one[name] for one in made]
            if all(one[name].shape == one["labels"].shape for one in made):
                fill = {"input_ids": pad_id, "labels": IGNORED}.get(name, 0)
                values = [_filled(value, (1, width), fill) for value in values]
            else:
                most = [max(sizes) for sizes in zip(*(v.shape[1:] for v in values), strict=True)]
                values = [_filled(value, (len(value), *most), 0) for value in values]
            batch[name] = torch.from_numpy(np.concatenate(values))
        return batch


def _from_end(encoded: Encoded, ids: np.ndarray) -> np.ndarray:
    """Which of the processed tokens are learned."""
    first = encoded.spans[0][0] if encoded.spans else len(encoded.ids)
    tail = encoded.ids[first:]
    moved = len(ids) - len(encoded.ids)
    if not tail or moved + first < 0 or ids[moved + first :].tolist() != tail:
        raise UnreadableError("the processor changes tokens of the response")
    learned = np.zeros(len(ids), bool)
    for start, stop in encoded.spans:
        learned[start + moved : stop + moved] = True
    learned[0] = False
    return learned


def _with_media(messages: list[Message], kind: str) -> list[Message]:
    """Contents as lists of parts, as templates of such models want them; the image or sound comes
    first in what the user says first."""
    parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
    asked = next((m for m in parts if m["role"] == "user"), None)
    if asked is not None:
        said = [part for part in asked["content"] if part["text"]]
        asked["content"] = [{"type": kind}, *said]
    return parts


def _filled(values: np.ndarray, shape: tuple[int, ...], fill: int) -> np.ndarray:
    if values.shape == shape:
        return values
    filled = np.full(shape, fill, values.dtype)
    filled[tuple(slice(size) for size in values.shape)] = values
    return filled


def _read_image(given: Any, folder: Path, _: int | None) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise UserError(hub.missing_package("pillow", "images are decoded with it")) from error

    if isinstance(given, (list, np.ndarray)):
        given = Image.fromarray(np.asarray(given, np.uint8))
    elif not isinstance(given, Image.Image):
        given = Image.open(_opened(given, folder))
    return given.convert("RGB")


def _read_sound(given: Any, folder: Path, rate: int | None) -> np.ndarray:
    """Samples of one channel as float32, at the processor's rate."""
    if isinstance(given, dict) and given.get("array") is not None:
        samples, given_rate = np.asarray(given["array"], np.float32), given.get("sampling_rate")
    elif isinstance(given, (list, np.ndarray)):
        samples, given_rate = np.asarray(given, np.float32), rate
    else:
        samples, given_rate = _decode_sound(_opened(given, folder))
    if rate and given_rate and given_rate != rate:
        samples = _resample(samples, round(len(samples) * rate / given_rate))
    return samples


def _opened(given: Any, folder: Path) -> Any:
    if isinstance(given, dict):
        given = given.get("bytes") or given.get("path")
    if isinstance(given, bytes):
        return io.BytesIO(given)
    if not isinstance(given, str):
        raise ValueError(f"a {type(given).__name__} is neither a path nor bytes nor an array")
    return folder / Path(given).expanduser()


def _decode_sound(file: Any) -> tuple[np.ndarray, int]:
    try:
        import soundfile  # type: ignore[import-not-found, unused-ignore]
    except (ImportError, OSError):
        with wave.open(str(file) if isinstance(file, Path) else file) as sound:
            width, channels = sound.getsampwidth(), sound.getnchannels()
            if width not in (2, 4):
                raise ValueError(
                    f"{8 * width}-bit sound needs soundfile: pip install soundfile"
                ) from None
            whole = np.frombuffer(sound.readframes(sound.getnframes()), f"<i{width}")
            scaled = whole.astype(np.float32) / float(1 << (8 * width - 1))
            return scaled.reshape(-1, channels).mean(axis=1), sound.getframerate()
    samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    return samples.mean(axis=1), int(rate)


def _resample(samples: np.ndarray, length: int) -> np.ndarray:
    """By its frequencies: those above the new rate are left out, none is folded down."""
    spectrum = np.fft.rfft(samples)
    made = np.fft.irfft(spectrum[: length // 2 + 1], length) * (length / max(1, len(samples)))
    return made.astype(np.float32)
