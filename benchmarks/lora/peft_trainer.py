"""HF Trainer + peft as their guides tell a user to write it."""

import torch

R, ALPHA = 64, 128


def make_peft(config, *, r=R, alpha=ALPHA, weights=None, dtype=None):
    """A model with adapters on every projection: drawn on the device it trains on, in the type that
    its config names, or read from `weights`, a folder."""
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import AutoModelForCausalLM

    if weights is not None:
        model = AutoModelForCausalLM.from_pretrained(weights, dtype=dtype)
    else:
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = AutoModelForCausalLM.from_config(config)
    settings = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=r,
        lora_alpha=alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
    )
    return get_peft_model(model, settings)


class Rows(torch.utils.data.Dataset):
    """Rows of the same tokens that Phalanx reads, ready in memory: nothing is quicker to load."""

    def __init__(self, data):
        import numpy as np

        self._columns = data.__getitems__(np.arange(len(data)))

    def __len__(self):
        return len(self._columns["input_ids"])

    def __getitem__(self, index):
        return {name: column[index] for name, column in self._columns.items()}


def train(folder, size, data, meter, *, compile, checkpointing, output):
    """Until the meter has seen enough."""
    from transformers import AutoConfig, Trainer, TrainerCallback, TrainingArguments

    class Measure(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = meter.step()

    has_gpu = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=output,
        per_device_train_batch_size=size.batch,
        max_steps=100_000,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=100,
        bf16=has_gpu,
        use_cpu=not has_gpu,
        dataloader_num_workers=4 if has_gpu else 0,
        dataloader_drop_last=True,
        gradient_checkpointing=checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if checkpointing else None,
        torch_compile=compile,
        report_to="none",
        disable_tqdm=True,  # no terminal is there
    )
    model = make_peft(AutoConfig.from_pretrained(folder))
    Trainer(model=model, args=arguments, train_dataset=Rows(data), callbacks=[Measure()]).train()
