"""The recipe's model in a loop of stock Accelerate; prints its figures as a line of JSON.

    python benchmarks/policy/accelerate_loop.py '{"data": "FOLDER", "size": "6m", "batch": 64, ...}'

As Accelerate's guide and robot-policy trainers write it: bf16, a DataLoader with processes and
shuffling, AdamW, clipping, a cosine schedule, noise drawn in the step, and an average of the
weights after each one (torch's own, which folds all of them at once).
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from accelerate import Accelerator
from meter import Meter, tell
from plain import endless, lr_factor
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from phalanx.recipe.loading import load_recipe

RATE, CLIP, DECAY = 1e-3, 1.0, 0.995


class Denoising(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, batch):
        actions = batch["actions"]
        noise = torch.randn_like(actions)
        time = torch.rand(len(actions), device=actions.device)
        said, wanted = self.net(batch, noise, time)
        return F.mse_loss(said, wanted)


def main(asked):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options = {"data": asked["data"], "size": asked["size"], "text_encoder": "none"}
    recipe = load_recipe("policy", options)
    found = [finding for finding in recipe.check() if finding.severity == "error"]
    assert not found, found
    accelerator = Accelerator(
        mixed_precision="bf16" if device == "cuda" else "no",
        dynamo_backend="inductor" if asked["compile"] else None,
        cpu=device == "cpu",
    )
    model = own = Denoising(recipe.model()).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)
    loader = DataLoader(
        Samples(recipe.data("train")),
        asked["batch"],
        shuffle=True,
        drop_last=True,
        num_workers=asked["workers"],
        pin_memory=device == "cuda",
    )
    average = AveragedModel(model, device=device, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    meter = Meter(asked["batch"], window=20, device=device, seconds=asked["seconds"])
    model.train()
    for batch in endless(loader):
        loss = model(batch)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        average.update_parameters(own)
        if meter.step():
            break
    tell({**meter.figures(), "parameters": sum(p.numel() for p in model.parameters())})


class Samples(torch.utils.data.Dataset):
    """Rows in memory, one at a time, as everybody's data set gives them."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
