"""From samples to tokens, and which of them are learned.

A conversation is rendered up to each answer and with it. The rendered prefixes say where answers
begin and end, whatever the template; they are only trusted if each is a prefix of the next. The
whole text is then tokenized once, as it will be when the model is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.recipe import Finding
from phalanx.recipes.lora.columns import Message, Sample, as_messages
from phalanx.recipes.lora.options import LoraOptions
from phalanx.recipes.lora.spans import Refused, Rendered, Span, answers_in, tokens_of

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class Encoded(NamedTuple):
    """A sample in tokens."""

    ids: list[int]
    spans: list[Span]
    """The tokens that are learned."""
    target: list[int] | None = None
    """What the decoder of a seq2seq model writes; `ids` are then what its encoder reads."""
    has_end: bool = True
    """Whether the last answer ends with a token of its own, from which a model learns to stop."""


class Template:
    """Renders and tokenizes samples with a tokenizer of transformers."""

    def __init__(self, tokenizer: Any, options: LoraOptions, *, is_seq2seq: bool = False) -> None:
        self.tokenizer = tokenizer
        self.is_seq2seq = is_seq2seq
        self.findings: list[Finding] = []
        self._system = options.system
        self._is_all_learned = options.train_on == "all"
        self.text = self._read(options.template)
        """The chat template, or None if there is none."""

    def encode(self, samples: Sequence[Sample]) -> list[Encoded | Refused]:
        """The tokens of samples, many at a time: fast tokenizers use every core."""
        if self.is_seq2seq:
            return self._encode_pairs(samples)
        plain = [s.messages is None and (self.text is None or s.prompt is None) for s in samples]
        encoded: list[Encoded | Refused] = [Refused("", "")] * len(samples)
        for is_plain in (True, False):
            chosen = [i for i, is_so in enumerate(plain) if is_so == is_plain]
            group = [samples[i] for i in chosen]
            rendered = self._join(group) if is_plain else self.render(group)
            for i, made in zip(chosen, self.tokenize(rendered, adds_special=is_plain), strict=True):
                encoded[i] = made
        return encoded

    def render(self, samples: Sequence[Sample]) -> list[Rendered | Refused]:
        """Conversations as text, by the chat template."""
        if self.text is None:
            return [Refused("are conversations, and there is no chat template", "")] * len(samples)
        conversations = [as_messages(sample, self._system) for sample in samples]
        if _GENERATION.search(self.text):
            return [self._marked(messages) for messages in conversations]
        jobs: list[tuple[list[Message], bool]] = []
        turns = []
        for messages in conversations:
            answers = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
            turns.append(answers)
            jobs.append((messages, False))
            for i in answers:
                jobs += [(messages[:i], True), (messages[: i + 1], False)]
        texts = iter(self._render_all(jobs))
        rendered: list[Rendered | Refused] = []
        for answers in turns:
            whole, *parts = [next(texts) for _ in range(1 + 2 * len(answers))]
            rendered.append(answers_in(whole, parts))
        return rendered

    def _marked(self, messages: list[Message]) -> Rendered | Refused:
        """By a template that says itself which parts an assistant writes."""
        from transformers.utils.chat_template_utils import render_jinja_template

        made: Any
        try:
            made = render_jinja_template(
                conversations=[messages],
                chat_template=self.text,
                return_assistant_tokens_mask=True,
                **self.tokenizer.special_tokens_map,
            )
        except Exception as error:  # a template raises what it likes
            return Refused("are refused by the chat template", str(error))
        texts, spans = made
        return Rendered(texts[0], [(start, stop) for start, stop in spans[0]])

    def _render_all(self, jobs: list[tuple[list[Message], bool]]) -> list[str | Refused]:
        texts: list[str | Refused] = [""] * len(jobs)
        for with_header in (True, False):
            chosen = [i for i, (messages, h) in enumerate(jobs) if h == with_header and messages]
            conversations = [jobs[i][0] for i in chosen]
            try:
                made: Sequence[str | Refused] = self._apply(conversations, with_header)
            except Exception:  # one of them, and which one has to be found
                made = [self._apply_one(messages, with_header) for messages in conversations]
            for i, text in zip(chosen, made, strict=True):
                texts[i] = text
        return texts

    def _apply(self, conversations: list[list[Message]], with_header: bool) -> list[str]:
        if not conversations:
            return []
        texts: list[str] = self.tokenizer.apply_chat_template(
            conversations,
            chat_template=self.text,
            tokenize=False,
            add_generation_prompt=with_header,
        )
        return texts

    def _apply_one(self, messages: list[Message], with_header: bool) -> str | Refused:
        try:
            return self._apply([messages], with_header)[0]
        except Exception as error:
            return Refused("are refused by the chat template", str(error))

    def _join(self, samples: Sequence[Sample]) -> list[Rendered | Refused]:
        """Without a chat template: prompt and response, one after the other."""
        joined: list[Rendered | Refused] = []
        for sample in samples:
            prompt = sample.prompt or ""
            text = prompt + sample.response
            joined.append(Rendered(text, [(len(prompt), len(text))]))
        return joined

    def tokenize(
        self, rendered: Sequence[Rendered | Refused], *, adds_special: bool
    ) -> list[Encoded | Refused]:
        """The tokens of texts; a chat template has written the special ones already."""
        texts = [r.text for r in rendered if isinstance(r, Rendered)]
        if not texts:
            return [r for r in rendered if isinstance(r, Refused)]
        if not getattr(self.tokenizer, "is_fast", False):
            return [self._by_pieces(r, adds_special=adds_special) for r in rendered]
        batch = self.tokenizer(
            texts,
            add_special_tokens=adds_special,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        encoded: list[Encoded | Refused] = []
        place = 0
        for one in rendered:
            if isinstance(one, Refused):
                encoded.append(one)
                continue
            ids = batch["input_ids"][place]
            spans = [tokens_of(batch, place, span) for span in one.spans]
            encoded.append(self._finish(ids, spans, adds_special=adds_special))
            place += 1
        return encoded

    def _by_pieces(self, rendered: Rendered | Refused, *, adds_special: bool) -> Encoded | Refused:
        """For tokenizers that do not say which characters a token stands for."""
        if isinstance(rendered, Refused):
            return rendered
        text, cuts = rendered
        ids: list[int] = []
        spans: list[Span] = []
        done = 0
        for start, stop in [*cuts, (len(text), len(text))]:
            for piece, is_learned in ((text[done:start], False), (text[start:stop], True)):
                made = self.tokenizer(piece, add_special_tokens=False)["input_ids"] if piece else []
                if is_learned and made:
                    spans.append((len(ids), len(ids) + len(made)))
                ids += made
            done = stop
        bos = self.tokenizer.bos_token_id
        if adds_special and bos is not None and getattr(self.tokenizer, "add_bos_token", False):
            ids, spans = [bos, *ids], [(a + 1, b + 1) for a, b in spans]
        return self._finish(ids, spans, adds_special=adds_special)

    def _finish(self, ids: list[int], spans: list[Span], *, adds_special: bool) -> Encoded:
        if adds_special:
            end = self.tokenizer.eos_token_id
            if end is not None and (not ids or ids[-1] != end):
                ids = [*ids, end]
            spans = [(start, len(ids)) for start, _ in spans]
        else:
            spans = [self._until_end(ids, span) for span in spans]
        has_end = bool(spans) and ids[spans[-1][1] - 1] in self._own_tokens
        if self._is_all_learned:
            spans = [(0, len(ids))]
        return Encoded(ids, spans, has_end=has_end)

    def _until_end(self, ids: list[int], span: Span) -> Span:
        """Without the line end that a template writes after the token that ends a turn: whoever
        completes a text has stopped there."""
        start, stop = span
        last = stop
        while (
            last > start and ids[last - 1] not in self._own_tokens and self._is_space(ids[last - 1])
        ):
            last -= 1
        return (start, last) if last > start and ids[last - 1] in self._own_tokens else span

    def _is_space(self, token: int) -> bool:
        known = self._spaces.get(token)
        if known is None:
            text = self.tokenizer.decode([token], clean_up_tokenization_spaces=False)
            known = self._spaces[token] = not text.strip()
        return known

    @cached_property
    def _spaces(self) -> dict[int, bool]:
        return {}

    @cached_property
    def _own_tokens(self) -> frozenset[int]:
        """Tokens that no text is made of; not all those of a GGUF file are called special."""
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        return frozenset({*added, *self.tokenizer.all_special_ids})

    def _encode_pairs(self, samples: Sequence[Sample]) -> list[Encoded | Refused]:
        """For a seq2seq model: what its encoder reads, and what its decoder writes."""
        pairs = [self._pair(sample) for sample in samples]
        good = [pair for pair in pairs if not isinstance(pair, Refused)]
        read, written = [], []
        if good:
            sources, targets = zip(*good, strict=True)
            read = self.tokenizer(list(sources), verbose=False)["input_ids"]
            written = self.tokenizer(text_target=list(targets), verbose=False)["input_ids"]
        made = iter(zip(read, written, strict=True))
        return [p if isinstance(p, Refused) else self._ended(*next(made)) for p in pairs]

    def _ended(self, ids: list[int], target: list[int]) -> Encoded:
        end = self.tokenizer.eos_token_id
        if end is not None and target[-1:] != [end]:
            target = [*target, end]
        return Encoded(ids, [], target)

    def _pair(self, sample: Sample) -> tuple[str, str] | Refused:
        if sample.messages is None:
            asked = sample.prompt or ""
            return f"{self._system}\n{asked}" if self._system else asked, sample.response
        *before, last = sample.messages
        if last["role"] != "assistant":
            return Refused("do not end with an answer", f"the last role is {last['role']}")
        header = self._apply_one(before, True) if self.text else Refused("", "")
        lines = "\n".join(str(message["content"]) for message in before)
        return header if isinstance(header, str) else lines, str(last["content"])

    def _read(self, file: Path | None) -> str | None:
        if file is None:
            try:
                return str(self.tokenizer.get_chat_template())
            except (AttributeError, ValueError):  # it has none, or several without a default
                return None
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self.findings.append(_unreadable(file, str(error)))
            return None
        try:
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": "a"}], chat_template=text, tokenize=False
            )
        except Exception as error:  # Jinja's, and what a template raises itself
            self.findings.append(_unreadable(file, f"{type(error).__name__}: {error}"))
            return None
        return text


def _unreadable(file: Path, problem: str) -> Finding:
    return Finding(
        slug="template-wrong",
        what=f"the chat template `{file}` cannot be used: {problem}",
        why=f"options.template = {file}; a template without it would be the tokenizer's own",
        fix="phalanx train lora template=FILE.jinja, or leave template out",
    )
