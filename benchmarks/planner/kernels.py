"""Where the device's time goes in the fitted models, by torch operator: for fitting constants.

python benchmarks/planner/kernels.py --out kernels.jsonl [--only NAME] [--budget-s 200]
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from points import FITTED, SETTINGS
from torch.profiler import ProfilerActivity, profile

from phalanx.engine.data.micro_batches import choose_fetch, map_tensors
from phalanx.engine.strategies.optimizers import make_optimizer
from phalanx.engine.strategies.precision import Precision
from phalanx.recipe.loading import load_recipe

MICRO = {"Gpt2": 8, "Bert": 24, "VitSmall": 128, "Policy6M": 1024}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--budget-s", type=float, default=200)
    arguments = parser.parse_args()
    precision = Precision("bf16", torch.device("cuda"), is_channels_last=True)
    precision.configure()
    started = time.monotonic()
    seen = set()
    with arguments.out.open("a") as out:
        for setting in SETTINGS:
            if setting.model not in FITTED or setting.model in seen:
                continue
            if arguments.only and not any(word in setting.name for word in arguments.only):
                continue
            if time.monotonic() - started > arguments.budget_s:
                print("time is up", flush=True)
                break
            seen.add(setting.model)
            micro = MICRO.get(setting.model, setting.micro_batches[1])
            begun = time.monotonic()
            try:
                record = look(setting, micro, precision)
            except Exception as error:
                record = {"error": f"{type(error).__name__}: {error}"[:500]}
            out.write(json.dumps({"name": setting.name, "micro": micro, **record}) + "\n")
            out.flush()
            print(setting.name, micro, f"{time.monotonic() - begun:.1f} s", flush=True)
            torch.cuda.empty_cache()


def look(setting, micro, precision):
    job = setting.job(micro)
    recipe = load_recipe(job.recipe, job.options)
    model = precision.lay_out(recipe.model().cuda())
    optimizer = make_optimizer(recipe, model, job.optimizer, 1e-4)
    data = recipe.data("train")
    ids = np.arange(micro) % len(data)
    batch = map_tensors(choose_fetch(data)(ids, ids), lambda tensor: tensor.cuda())
    keys = torch.from_numpy(ids).cuda()

    def step():
        with precision.autocast():
            terms = recipe.loss(model, precision.convert_batch(batch), keys)
            loss = sum(term.sum for term in terms.values())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(4):
        step()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(5):
        step()
    host_s = (time.perf_counter() - begun) / 5
    torch.cuda.synchronize()
    step_s = (time.perf_counter() - begun) / 5
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(2):
            step()
        torch.cuda.synchronize()
    operators, kernels = {}, {}
    for event in profiler.key_averages():
        device_us = event.self_device_time_total / 2
        if device_us <= 0:
            continue
        is_kernel = str(event.device_type).endswith("CUDA")
        (kernels if is_kernel else operators)[event.key[:160]] = [event.count / 2, device_us]
    top = dict(sorted(kernels.items(), key=lambda pair: -pair[1][1])[:40])
    return {"step_s": step_s, "host_s": host_s, "operators": operators, "kernels": top}


if __name__ == "__main__":
    main()
