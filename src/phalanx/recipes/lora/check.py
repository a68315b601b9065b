"""What stands between a job and its data, all at once, before anything is trained."""

from __future__ import annotations

from typing import Any

from phalanx.recipe import Finding, UserError
from phalanx.recipes.lora.data import longest
from phalanx.recipes.lora.media import MediaData, UnreadableError
from phalanx.recipes.lora.options import LoraOptions
from phalanx.recipes.lora.rows import Source, find_sources, is_held_out, unit_of
from phalanx.recipes.lora.template import Template
from phalanx.recipes.lora.tokens import LEFT_OUT, Fault, Tally, tokenize

_MEDIA_TRIED = 8  # images or sounds that are processed for the check


def check_sources(options: LoraOptions) -> list[Finding]:
    """That there are rows: all that can be told without a tokenizer."""
    try:
        find_sources(options)
    except UserError as error:
        return error.findings
    return []


def check_data(
    options: LoraOptions,
    tokenizer: Any,
    *,
    context: int | None = None,
    processor: Any = None,
    is_seq2seq: bool = False,
) -> list[Finding]:
    """Read and tokenize all rows; what is found is kept for the data set."""
    template = Template(tokenizer, options, is_seq2seq=is_seq2seq)
    findings = list(template.findings)
    try:
        sources = find_sources(options)
    except UserError as error:
        return [*findings, *error.findings]
    share, has_media = 0.0 if sources.test else options.test_share, False
    for key, source in (("data", sources.train), ("test_data", sources.test)):
        if source is None:
            continue
        try:
            media = processor and MediaData.open(
                source, options, processor, template, longest(options, context)
            )
            if media:
                has_media = True
                findings += _check_media(media, source, key)
                continue
            findings += _check_text(source, key, options, template, context, share)
        except UserError as error:
            findings += error.findings
    if options.packing and (is_seq2seq or has_media):
        findings.append(_no_packing("a seq2seq model" if is_seq2seq else "images or sounds"))
    return findings


def _check_text(
    source: Source,
    key: str,
    options: LoraOptions,
    template: Template,
    context: int | None,
    share: float,
) -> list[Finding]:
    limit = longest(options, context)
    tokens = tokenize(source, options, template, limit)
    tally, findings = tokens.tally, []
    if tally.rows == 0:
        return [_empty(source, key)]
    findings = [_of_fault(fault, tally, key) for fault in tally.faults]
    if tally.media:
        findings.append(_unseen(tally.media, options, source))
    if tally.cut:
        findings.append(_too_long(tally, options, context))
    if tally.glued and not template.findings:
        findings.append(_glued(tally, len(tokens), source))
    if tally.endless == len(tokens) > 0 and options.train_on == "response":
        findings.append(_endless(tally, source, template))
    learned = sum(not is_held_out(row, share) for row in tokens.rows.tolist())
    if not learned and not any(f.severity == "error" for f in findings):
        findings.append(_nothing(tally, source, key))
    return findings


def _check_media(media: MediaData, source: Source, key: str) -> list[Finding]:
    if media.tally.rows == 0:
        return [_empty(source, key)]
    findings = [_of_fault(f, media.tally, key) for f in media.tally.faults]
    for index in range(min(_MEDIA_TRIED, len(media))):
        try:
            media.load(index)
        except UnreadableError as error:
            findings.append(media.unreadable(index, error))
        except UserError as error:
            findings += error.findings
            break
    return findings


def _of_fault(fault: Fault, tally: Tally, key: str) -> Finding:
    unit = unit_of(fault.file)
    places = _places(fault, unit)
    what = f"{fault.count:,} of {tally.rows:,} rows {fault.wrong}: {places}"
    why = f"{fault.file}" + (f", {unit} {fault.numbers[0]}: {fault.detail}" if fault.detail else "")
    if fault.wrong == LEFT_OUT:
        return Finding(
            slug="data-left-out",
            what=f"{fault.count:,} of {tally.rows:,} samples {fault.wrong}: {places} left out",
            why=f"{why} (options.max_length, at most the model's context)",
            fix=f"phalanx train lora max_length={tally.longest}",
            severity="error" if fault.count == tally.rows else "warning",
        )
    if "no chat template" in fault.wrong:
        return Finding(
            slug="template-missing",
            what=what,
            why=f"{fault.file}; the tokenizer has none and options.template is not set",
            fix="phalanx train lora template=FILE.jinja",
        )
    if "chat template" in fault.wrong or "when more is said" in fault.wrong:
        return Finding(
            slug="template-wrong",
            what=what,
            why=why,
            fix="phalanx train lora template=FILE.jinja, with {% generation %} ... "
            "{% endgeneration %} around what an assistant writes",
        )
    return Finding(slug="data-rows", what=what, why=why, fix=_mend(fault, key))


def _places(fault: Fault, unit: str) -> str:
    numbers = ", ".join(f"{number:,}" for number in fault.numbers)
    more = fault.count - len(fault.numbers)
    units = f"{unit}s" if fault.count > 1 else unit
    return f"{units} {numbers}" + (f" and {more:,} more" if more else "")


def _mend(fault: Fault, key: str) -> str:
    """Lines that can be taken out by their numbers are."""
    if fault.count <= len(fault.numbers) and fault.file.endswith(".jsonl"):
        lines = "".join(f"{number}d;" for number in fault.numbers)
        return f"mend them, or take them out: sed -i.bak '{lines.rstrip(';')}' {fault.file}"
    return (
        f"mend these {unit_of(fault.file)}s of {fault.file}, or name other columns or another {key}"
    )


def _too_long(tally: Tally, options: LoraOptions, context: int | None) -> Finding:
    limit = longest(options, context)
    room = f"the model's context is {context:,} tokens" if context else "no context is known"
    wanted = min(tally.longest, context) if context else tally.longest
    return Finding(
        slug="data-too-long",
        what=f"{tally.cut:,} of {tally.rows:,} samples are longer than {limit:,} tokens and are "
        f"cut; the longest has {tally.longest:,}",
        why=f"options.max_length = {options.max_length:,}; {room}; the longest is "
        f"{unit_of(tally.longest_in)} {tally.longest_at:,} of {tally.longest_in}",
        fix=f"phalanx train lora max_length={wanted}"
        if wanted > options.max_length
        else "split the longest rows: the model takes no more",
        severity="warning",
    )


def _unseen(column: str, options: LoraOptions, source: Source) -> Finding:
    return Finding(
        slug="data-media",
        what=f"the column `{column}` is not used: the model has no processor for it",
        why=f"{'options.media' if options.media else 'the columns'} of {source.name}; a processor "
        "comes with models that see or hear (preprocessor_config.json)",
        fix="phalanx train lora model=MODEL that takes images or sounds",
        severity="error" if options.media else "warning",
    )


def _glued(tally: Tally, count: int, source: Source) -> Finding:
    return Finding(
        slug="template-missing",
        what=f"prompt and response touch in {tally.glued:,} of {count:,} samples of "
        f"{source.name}: no space between them",
        why="the tokenizer has no chat template and options.template is not set, so that they are "
        "joined as they are",
        fix="phalanx train lora template=FILE.jinja, or end every prompt with a space or line end",
        severity="warning",
    )


def _endless(tally: Tally, source: Source, template: Template) -> Finding:
    where = "the tokenizer has no end token" if template.text is None else "the chat template"
    return Finding(
        slug="template-endless",
        what="no response ends with a token of its own: the model will not learn to stop",
        why=f"{where} writes none after an answer of {source.name}, all {tally.endless:,} of them",
        fix="phalanx train lora template=FILE.jinja, with {{ eos_token }} after each answer",
        severity="warning",
    )


def _empty(source: Source, key: str) -> Finding:
    files = ", ".join(str(file) for file in source.files[:3]) or source.name
    return Finding(
        slug="data-empty",
        what=f"there is no row in {files}",
        why=f"options.{key}; {len(source.files) or 1} file(s) read",
        fix=f"phalanx train lora {key}=FILE with at least one row",
    )


def _nothing(tally: Tally, source: Source, key: str) -> Finding:
    return Finding(
        slug="data-empty",
        what=f"no sample is left to learn: {tally.rows:,} rows, all held out or left out",
        why=f"options.{key}, options.test_share and options.max_length; {source.name}",
        fix="phalanx train lora test_share=0",
    )


def _no_packing(what: str) -> Finding:
    return Finding(
        slug="packing",
        what=f"samples of {what} cannot be packed",
        why="options.packing = true",
        fix="phalanx train lora packing=false",
    )
