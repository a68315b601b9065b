"""Numbers: not finite, too small for fp16, scales that collapse."""

from __future__ import annotations

from phalanx.diagnose.causes.row import Cause

CAUSES = (
    Cause(
        name="fp16-collapse",
        any_of=(
            r"Current loss scale already at minimum - cannot decrease scale anymore",
            r"(?i)loss scale.{0,40}(reached|below|at) (its )?minimum",
        ),
        is_said_before=True,
        words="fp16 overflows in every step: the loss scale is at its least and training stands "
        "still",
        fix="{again} precision=bf16, or a tenth of the rate: optimizer.lr={lr_tenth}",
        script_fix="bf16 instead of fp16 (`phalanx launch --mixed-precision bf16 ...`), or a tenth "
        "of the learning rate",
        text="Exception: Current loss scale already at minimum - cannot decrease scale anymore. "
        "Exiting run.",
        source="failure 36; DeepSpeed loss_scaler.py",
    ),
    Cause(
        name="not-finite",
        any_of=(
            r"Function '(?P<operation>\w+)' returned nan values in its \d+th output",
            r"(?i)\b(loss|grad(ient)?s?)( value)? ?(is|was|became|are|=|:) ?"
            r"\[?(nan|inf|non-?finite)\b",
            r"(?i)\b(nan|inf|non-?finite)( or inf)? (loss|grad(ient)?s?)\b",
            r"The total norm of order .* for gradients from `parameters` is non-finite",
            r"FloatingPointError",
            r"probability tensor contains either `?inf`?, `?nan`?",
            r"cannot convert float (NaN|infinity) to integer",
            r"Expected parameter .* to satisfy the constraint .*nan",
        ),
        words="the loss or its gradients are no longer finite numbers: a rate that is too large, "
        "a division by zero, log(0), or an overflow",
        fix="{again} optimizer.lr={lr_tenth} optimizer.clip_norm=1.0; or precision=fp32 to see "
        "whether it is an overflow",
        script_fix="a tenth of the learning rate, gradients clipped to 1.0, bf16 instead of fp16; "
        "torch.autograd.set_detect_anomaly(True) names the operation",
        text="RuntimeError: Function 'LogBackward0' returned nan values in its 0th output.",
        source="torch/csrc/autograd/python_anomaly_mode.cpp; torch/nn/utils/clip_grad.py",
    ),
    Cause(
        name="fp16-weights",
        any_of=(r"Attempting to unscale FP16 gradients",),
        words="the weights themselves are fp16, and a loss scaler needs fp32 ones",
        fix="load the model in fp32 and let precision=fp16 do the rest",
        script_fix="load the model with torch_dtype=torch.float32; autocast does the rest",
        text="ValueError: Attempting to unscale FP16 gradients.",
        source="torch/amp/grad_scaler.py; asked about: fp16 instead of bf16",
    ),
    Cause(
        name="fp16-overflow",
        any_of=(r"OVERFLOW! Rank \d+ Skipping step", r"Gradient overflow\.\s+Skipping step"),
        grade="symptom",
        words="fp16 overflowed; a few such steps in the beginning are in order, many are not",
        fix="{again} precision=bf16",
        script_fix="bf16 instead of fp16, or a smaller learning rate",
        text="[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to "
        "32768",
        source="failure 36; DeepSpeed loss_scaler.py",
    ),
)
