"""The loss curve of Phalanx's lora recipe beside that of HF Trainer + peft: the same batches, the
same first adapters, dropout 0, the same AdamW, rates and clipping, 2 micro-batches a step.

    python benchmarks/lora/curve.py [--size tiny|135m | --model FOLDER|smollm2] [--steps 30]

In fp32 on a CPU, in bf16 on a GPU. `smollm2` is the recipe's default model with its real weights
and rows; the others are drawn here. Which samples come when is asked of Phalanx's order, the rate
of each step is read from its events, the first adapters are drawn from its seed.
"""

import argparse
import os
import sys
import tempfile
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from models import SIZES, write_model, write_pairs
from peft_trainer import make_peft

from phalanx.api import train
from phalanx.engine.data.order import INIT, ids_at
from phalanx.recipe.keys import make_key
from phalanx.recipes.lora.base import convert
from phalanx.recipes.lora.network import peft_name
from phalanx.recipes.lora.options import LoraOptions
from phalanx.recipes.lora.recipe import LoraRecipe
from phalanx.run.event_kinds import Step
from phalanx.run.events import read_events

SEED = 7
LR = 1e-2


class Course:
    """One fine-tuning that both do."""

    def __init__(self, options, *, steps, micro, accumulation=2, precision="fp32"):
        self.options = LoraOptions(**options)
        self.steps, self.micro, self.accumulation = steps, micro, accumulation
        self.precision = precision

    @cached_property
    def recipe(self):
        return LoraRecipe(self.options)

    @cached_property
    def data(self):
        return self.recipe.data("train")

    def order(self):
        """Ids of the samples, step by step; an epoch has only whole steps here."""
        batch = self.micro * self.accumulation
        size = len(self.data)
        if size % batch:
            raise ValueError(f"{size} samples are no whole number of batches of {batch}")
        starts = range(0, self.steps * batch, batch)
        return np.concatenate(
            [ids_at(SEED, s // size, s % size, s % size + batch, size) for s in starts]
        )

    def first_adapters(self):
        """As Phalanx draws them, under the names of peft."""
        torch.manual_seed(make_key(SEED, INIT) & (1 << 62) - 1)
        tensors = self.recipe.model().state_dict()
        return {new: tensors[name] for name in tensors if (new := peft_name(name)) is not None}


def train_phalanx(course, folder):
    """(loss, rate) of each step, as `phalanx train` does them."""
    said = course.options.model_dump(exclude_defaults=True)
    settings = {
        "epochs": None,
        "steps": course.steps,
        "global_batch_size": course.micro * course.accumulation,
        "micro_batch_size": course.micro,
        "seed": SEED,
        "precision": course.precision,
        "optimizer.lr": LR,
        "logging.every": 1,
        "evaluate.every": None,
        "evaluate.at_start": False,
        "checkpoint.every": None,
        "output": f"{folder}/runs",
        "options.completions": 0,
        **{f"options.{name}": value for name, value in said.items()},
    }
    where = ["devices.gpus=[0]"] if course.precision == "bf16" else ["devices.cpu=1"]
    train("lora", *where, **settings)
    events = read_events(Path(folder, "runs", "latest", "events"))
    steps = [event.body for event in events if isinstance(event.body, Step)]
    return [(step.loss, step.lr) for step in steps]


def train_peft(course, rates, folder):
    """The loss of each step, by HF's Trainer."""
    from peft import set_peft_model_state_dict
    from transformers import Trainer, TrainingArguments

    base = course.recipe.base
    weights = convert(base) if base.gguf else base.folder
    is_gpu = course.precision == "bf16"
    model = make_peft(
        None,
        r=course.options.r,
        alpha=course.options.alpha,
        weights=weights,
        dtype="auto" if is_gpu else torch.float32,
    )
    found = set_peft_model_state_dict(model, course.first_adapters())
    if found.unexpected_keys or any("lora" in key for key in found.missing_keys):
        raise RuntimeError(f"adapters are called otherwise: {found}")
    order, losses = course.order().tolist(), []

    class Fed(Trainer):
        def _get_train_sampler(self, *_):
            return order

        def compute_loss(self, *given, **more):
            loss = super().compute_loss(*given, **more)
            losses.append(float(loss.detach()))
            return loss

    arguments = TrainingArguments(
        output_dir=f"{folder}/peft",
        per_device_train_batch_size=course.micro,
        gradient_accumulation_steps=course.accumulation,
        max_steps=course.steps,
        max_grad_norm=1.0,
        bf16=is_gpu,
        use_cpu=not is_gpu,
        save_strategy="no",
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
    )
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1.0, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rates[min(step, len(rates) - 1)]
    )
    trainer = Fed(
        model=model,
        args=arguments,
        train_dataset=range(len(course.data)),
        data_collator=lambda ids: course.data.__getitems__(np.array(ids)),
        optimizers=(optimizer, schedule),
    )
    trainer.train()
    return [sum(part) for part in zip(*[iter(losses)] * course.accumulation, strict=True)]


def compare(course, folder):
    """[(Phalanx's loss, peft's)] of each step."""
    ours = train_phalanx(course, folder)
    theirs = train_peft(course, [rate for _, rate in ours], folder)
    return [(loss, other) for (loss, _), other in zip(ours, theirs, strict=True)]


def apart(curves):
    """The largest relative difference of two losses at the same step."""
    return max(abs(ours / theirs - 1) for ours, theirs in curves)


def drawn_model(folder, size, *, rows):
    """Options for a model with random weights in bf16 files, as most come, and rows for it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model = write_model(Path(folder, "model"), size)
    torch.manual_seed(SEED)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model)).save_pretrained(model)
    data = write_pairs(Path(folder, "rows.jsonl"), size, rows=rows)
    return {
        "model": str(model),
        "data": str(data),
        "test_share": 0.0,
        "max_length": size.length,
        "pad_to": 8,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="tiny", help="of a model that is drawn")
    parser.add_argument("--model", help="a folder with weights, or smollm2")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--micro", type=int, default=4, help="samples of a micro-batch")
    arguments = parser.parse_args()
    precision = "bf16" if torch.cuda.is_available() else "fp32"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.model is None:
            rows = 8 * arguments.micro
            options = drawn_model(folder, SIZES[arguments.size], rows=rows) | {"r": 8, "alpha": 16}
        else:
            options = {} if arguments.model == "smollm2" else {"model": arguments.model}
        course = Course(options, steps=arguments.steps, micro=arguments.micro, precision=precision)
        curves = compare(course, folder)
    print("| step | Phalanx | HF Trainer + peft |\n|--:|--:|--:|")
    for step, (ours, theirs) in enumerate(curves, 1):
        print(f"| {step} | {ours:.6f} | {theirs:.6f} |")
    print(f"\nlargest relative difference: {apart(curves):.2e}, in {precision}")


if __name__ == "__main__":
    main()
