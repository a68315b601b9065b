"""HF Trainer, Accelerate and Lightning, as their documentation tells a user to write it.

Each with clipping and a schedule on and its own logging, progress bar and saving as they come;
`compile` switches on what each offers for it.
"""

import torch
from plain import TOTAL_STEPS, WARMUP, endless, lr_factor, make_loader


def hf_trainer(work, device, meter, *, compile, output, folder=None):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Measure(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = meter.step()

    model = work.model()
    arguments = TrainingArguments(
        output_dir=output,
        per_device_train_batch_size=work.batch,
        max_steps=TOTAL_STEPS,
        learning_rate=work.lr,
        lr_scheduler_type="cosine",
        warmup_steps=WARMUP,
        max_grad_norm=work.clip,
        bf16=device == "cuda",
        use_cpu=device == "cpu",
        dataloader_num_workers=work.workers,
        dataloader_drop_last=True,
        torch_compile=compile,
        # Its saving refuses a plain module whose weights are tied: nothing is saved then.
        save_strategy="no" if has_tied_weights(model) else "steps",
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=work.data(folder), callbacks=[Measure()]
    )
    trainer.train()


def has_tied_weights(model):
    """Whether a parameter has two names."""
    named = dict(model.named_parameters(remove_duplicate=False))
    return len(named) > len(set(map(id, named.values())))


def accelerate(work, device, meter, *, compile, output, folder=None):
    from accelerate import Accelerator

    accelerator = Accelerator(
        mixed_precision="bf16" if device == "cuda" else "no",
        dynamo_backend="inductor" if compile else None,
        cpu=device == "cpu",
    )
    model = work.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)
    loader = make_loader(work, device, folder)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    for batch in endless(loader):
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), work.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if meter.step():
            return


def lightning(work, device, meter, *, compile, output, folder=None):
    try:
        import lightning.pytorch as pl
    except ImportError:
        import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            model = work.model()
            # The whole module, as its guide begins with, fails at `self.log` under torch 2.13.
            self.model = torch.compile(model) if compile else model

        def training_step(self, batch, index):
            loss = self.model(**batch)["loss"]
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=work.lr)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule, "interval": "step"},
            }

    class Measure(pl.Callback):
        def on_train_batch_end(self, trainer, *rest):
            if meter.step():
                trainer.should_stop = True

    loader = make_loader(work, device, folder)
    trainer = pl.Trainer(
        max_steps=TOTAL_STEPS,
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed" if device == "cuda" else "32-true",
        gradient_clip_val=work.clip,
        default_root_dir=output,
        callbacks=[Measure()],
    )
    trainer.fit(Module(), loader)
