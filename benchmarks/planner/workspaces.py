"""What libraries take besides the tensors torch knows: recurrent layers, convolutions, attention.

python benchmarks/planner/workspaces.py --out workspaces.jsonl
"""

import argparse
import itertools
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

HALF = torch.bfloat16


def peak_of(work):
    """(result, bytes that stay, most bytes at a time) of some work, over what was there."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = work()
    torch.cuda.synchronize()
    return (
        result,
        torch.cuda.memory_allocated() - before,
        torch.cuda.max_memory_allocated() - before,
    )


def recurrent():
    kinds = (nn.LSTM, nn.GRU, nn.RNN)
    for kind, layers, both, dtype in itertools.product(
        kinds, (1, 2), (False, True), (HALF, torch.float32)
    ):
        steps, samples, width, units = 100, 64, 256, 512
        layer = kind(width, units, layers, bidirectional=both).cuda().to(dtype)
        x = torch.randn(steps, samples, width, device="cuda", dtype=dtype, requires_grad=True)
        layer(x)[0].sum().backward()
        layer.zero_grad(set_to_none=True)
        x.grad = None
        (out, _), kept, most = peak_of(lambda layer=layer, x=x: layer(x))
        grad = torch.ones_like(out)
        _, stays, backward = peak_of(
            lambda out=out, grad=grad: out.backward(grad, retain_graph=True)
        )
        unit = steps * samples * units * dtype.itemsize
        yield {
            "what": kind.__name__,
            "layers": layers,
            "both": both,
            "dtype": str(dtype),
            "kept_units": (kept - out.nbytes) / unit,
            "forward_peak_units": most / unit,
            "backward_peak_units": backward / unit,
            "backward_stays_units": stays / unit,
        }


def convolutional():
    torch.backends.cudnn.benchmark = True
    shapes = [
        (64, 64, 64, 56, 3, 1),
        (64, 256, 64, 56, 1, 1),
        (32, 64, 64, 128, 3, 1),
        (16, 128, 128, 128, 3, 1),
        (32, 256, 256, 32, 3, 1),
        (64, 512, 512, 14, 3, 1),
        (64, 3, 64, 224, 7, 2),
        (32, 64, 128, 64, 3, 2),
    ]
    for shape, mode in itertools.product(shapes, ("bf16", "fp32", "tf32")):
        samples, inputs, outputs, size, window, stride = shape
        torch.backends.cudnn.allow_tf32 = mode == "tf32"
        dtype = HALF if mode == "bf16" else torch.float32
        layer = nn.Conv2d(inputs, outputs, window, stride, window // 2, bias=False).cuda().to(dtype)
        x = torch.randn(samples, inputs, size, size, device="cuda", dtype=dtype, requires_grad=True)
        for _ in range(2):
            layer(x).sum().backward()
            layer.weight.grad = x.grad = None
        torch.cuda.empty_cache()
        out, _, forward = peak_of(lambda layer=layer, x=x: layer(x))
        grad = torch.ones_like(out)
        _, _, backward = peak_of(lambda out=out, grad=grad: out.backward(grad))
        yield {
            "what": "Conv2d",
            "shape": shape,
            "mode": mode,
            "x": x.nbytes,
            "out": out.nbytes,
            "weight": layer.weight.nbytes,
            "forward_extra": forward - out.nbytes,
            "backward_extra": backward - x.nbytes - layer.weight.nbytes,
        }


def attention():
    samples, heads, length, size = 16, 8, 512, 64
    for learns, dtype, dropout in itertools.product((False, True), (HALF, torch.float32), (0, 0.1)):
        q, k, v = (
            torch.randn(samples, heads, length, size, device="cuda", dtype=dtype)
            .transpose(1, 2)
            .contiguous()
            .transpose(1, 2)
            .requires_grad_()
            for _ in range(3)
        )
        mask = torch.randn(1, heads, length, length, device="cuda", dtype=dtype)
        mask.requires_grad_(learns)

        def attend(q=q, k=k, v=v, mask=mask, dropout=dropout):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)

        attend().sum().backward()
        q.grad = k.grad = v.grad = mask.grad = None
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            attend().sum().backward()
        q.grad = k.grad = v.grad = mask.grad = None
        names = sorted({e.key for e in profiler.key_averages() if "attention" in e.key})
        out, kept, forward = peak_of(attend)
        grad = torch.ones_like(out)
        _, stays, backward = peak_of(lambda out=out, grad=grad: out.backward(grad))
        scores = samples * heads * length * length * dtype.itemsize
        yield {
            "what": "attention",
            "learns": learns,
            "dtype": str(dtype),
            "dropout": dropout,
            "operators": names,
            "out": out.nbytes,
            "kept_scores": (kept - out.nbytes) / scores,
            "forward_scores": forward / scores,
            "backward_scores": backward / scores,
            "backward_stays_scores": stays / scores,
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with arguments.out.open("a") as out:
        for kind in (recurrent, attention, convolutional):
            try:
                for row in kind():
                    out.write(json.dumps(row) + "\n")
                    out.flush()
            except Exception as error:
                out.write(json.dumps({"what": kind.__name__, "error": str(error)[:500]}) + "\n")


if __name__ == "__main__":
    main()
