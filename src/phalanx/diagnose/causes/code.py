"""Code of the recipe or the script: the graph, shapes, kinds of numbers, what it was told."""

from __future__ import annotations

from phalanx.diagnose.causes.row import Cause

CAUSES = (
    Cause(
        name="unused-parameters",
        any_of=(
            r"Expected to have finished reduction in the prior iteration before starting a new one",
        ),
        words="DDP waits for gradients of parameters that the loss did not use{indices}",
        fix="use them in the loss, or take them out: `requires_grad_(False)` in model()",
        script_fix="DistributedDataParallel(..., find_unused_parameters=True), or "
        "`requires_grad_(False)` for those; TORCH_DISTRIBUTED_DEBUG=INFO names them",
        text="RuntimeError: Expected to have finished reduction in the prior iteration before "
        "starting a new one. This error indicates that your module has parameters that were not "
        "used in producing loss.",
        source="failure 35; torch 2.13, reducer.cpp",
    ),
    Cause(
        name="parameter-used-twice",
        any_of=(r"Expected to mark a variable ready only once",),
        words="a parameter got its gradient twice in one backward: checkpointing that re-enters "
        "(use_reentrant=True), or a part that runs twice under DDP",
        fix="activation_checkpointing=on instead of the model's own checkpointing",
        script_fix="gradient_checkpointing_kwargs={{'use_reentrant': False}}, or "
        "DistributedDataParallel(..., static_graph=True)",
        text="RuntimeError: Expected to mark a variable ready only once. This error is caused by "
        "one of the following reasons: 1) Use of a module parameter outside the `forward` "
        "function.",
        source="failure 35; torch 2.13, reducer.cpp",
    ),
    Cause(
        name="changed-in-place",
        any_of=(
            r"one of the variables needed for gradient computation has been modified by an inplace "
            r"operation",
            r"a leaf Variable that requires grad is being used in an in-place operation",
        ),
        words="a value that backward needs was written over (`+=`, `relu_`, `x[i] = ...`)",
        fix="write `x = x + y` instead of `x += y`; "
        "`torch.autograd.set_detect_anomaly(True)` names the line",
        text="RuntimeError: one of the variables needed for gradient computation has been modified "
        "by an inplace operation: [torch.FloatTensor [2, 2]] is at version 1; expected version 0 "
        "instead.",
        source="torch/csrc/autograd/saved_variable.cpp",
    ),
    Cause(
        name="backward-twice",
        any_of=(r"Trying to backward through the graph a second time",),
        words="backward ran twice over one graph: something of the last step is still in the loss",
        fix="`.detach()` what is carried from one step to the next (hidden states, averages)",
        text="RuntimeError: Trying to backward through the graph a second time (or directly access "
        "saved tensors after they have already been freed).",
        source="torch/csrc/autograd/saved_variable.cpp",
    ),
    Cause(
        name="no-gradient",
        any_of=(r"does not require grad and does not have a grad_fn",),
        words="the loss depends on nothing that learns: everything is frozen, detached, or under "
        "torch.no_grad()",
        fix="look for `.detach()`, `.item()`, `no_grad` and `requires_grad_(False)` on the way to "
        "the loss",
        text="RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
        source="torch/csrc/autograd/python_variable.cpp",
    ),
    Cause(
        name="weights-do-not-fit",
        any_of=(
            r"size mismatch for (?P<name>[\w.]+): copying a param with shape (?P<first>\S+\(?\[?"
            r"[\d, ]*\]?\)?) from checkpoint, the shape in current model is (?P<second>.+?)\.?$",
            r"Error\(s\) in loading state_dict for (?P<model>\w+)",
            r"(Missing|Unexpected) key\(s\) in state_dict",
        ),
        words="the weights are of another model: `{name}` is {first} in the file and {second} here",
        fix="build the model that was saved (its width, classes, vocabulary), or leave out what "
        "differs: load_state_dict(..., strict=False) with those keys removed",
        text="size mismatch for fc.weight: copying a param with shape torch.Size([10, 64]) from "
        "checkpoint, the shape in current model is torch.Size([3, 64]).",
        source="torch/nn/modules/module.py",
    ),
    Cause(
        name="unsafe-weights-file",
        any_of=(r"Weights only load failed",),
        words="the file holds more than tensors, and reading it would run code from it",
        fix="save tensors alone (safetensors); of a file you made yourself allow what it names: "
        "torch.serialization.add_safe_globals([...]); never weights_only=False for others' files",
        text="_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to "
        "do so you have two options",
        source="failure 40; torch/serialization.py",
    ),
    Cause(
        name="shapes-do-not-fit",
        any_of=(
            r"mat1 and mat2 shapes cannot be multiplied \((?P<first>\w+) and (?P<second>\w+)\)",
            r"The size of tensor a \((?P<first>\d+)\) must match the size of tensor b "
            r"\((?P<second>\d+)\)",
            r"shape '(?P<first>\[.*?\])' is invalid for input of size (?P<second>\d+)",
            r"Given groups=.*expected input(?P<first>\[.*?\]) to have (?P<second>\d+ channels)",
            r"Expected input batch_size \((?P<first>\d+)\) to match target batch_size "
            r"\((?P<second>\d+)\)",
            r"Sizes of tensors must match except in dimension",
        ),
        words="shapes do not fit together: {first} and {second}",
        fix="print the shapes before that line; sizes of the data and of the model must agree",
        text="RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x784 and 512x10)",
        source="aten/src/ATen/native/LinearAlgebra.cpp, ExpandUtils.cpp",
    ),
    Cause(
        name="dtypes-differ",
        any_of=(
            r"expected (scalar type|m1 and m2 to have the same dtype, but got:?) (?P<first>[\w:]+)"
            r"( but found| !=) (?P<second>[\w:]+)",
            r"mat1 and mat2 must have the same dtype, but got (?P<first>\w+) and (?P<second>\w+)",
            r"Input type \((?P<first>[\w.]+)\) and (weight|bias) type \((?P<second>[\w.]+)\) "
            r"should be the same",
            r"(?P<first>result type \w+) can't be cast to the desired output type (?P<second>\w+)",
            r"\"(?P<first>[\w.]+)\" not implemented for '(?P<second>\w+)'",
            r"Found dtype (?P<first>\w+) but expected (?P<second>\w+)",
        ),
        words="two kinds of numbers meet in one operation: {first} and {second}",
        fix="`.to(weight.dtype)`, or `.float()` / `.long()` of the labels, before that line",
        text="RuntimeError: mat1 and mat2 must have the same dtype, but got Double and Float",
        source="aten/src/ATen/native; asked about: fp16 instead of bf16",
    ),
    Cause(
        name="no-values",
        any_of=(
            r"Cannot copy out of meta tensor; no data",
            r"Tensor on device meta is not on the expected device",
            r"on (device )?meta,? .*expected|Unhandled FakeTensor Device Propagation",
        ),
        words="a part of the model has shapes and no values (device meta): nothing was loaded "
        "into it",
        fix="`to_empty(device)` and then load or initialise; or build it without `torch.device("
        '"meta")`',
        text="NotImplementedError: Cannot copy out of meta tensor; no data! Please use "
        "torch.nn.Module.to_empty() instead of torch.nn.Module.to() when moving module from meta "
        "to a different device.",
        source="aten/src/ATen/native/TensorConversions.cpp",
    ),
    Cause(
        name="devices-differ",
        any_of=(
            r"Expected all tensors to be on the same device, but (found at least two devices|got "
            r"\w+ is on), ?(?P<first>\S+?)( and|,|!) ?(?P<second>\S+)?",
            r"Expected all tensors to be on the same device",
            r"module must have its parameters and buffers on device",
            r"tensors? (is|are) on (cpu|cuda:\d+), .*expected",
        ),
        words="tensors on two devices meet in one operation: {first} and {second}",
        fix="make new tensors where the others are: `torch.zeros(n, device=x.device)`; what "
        "belongs to the model is a buffer: `register_buffer`",
        text="RuntimeError: Expected all tensors to be on the same device, but found at least two "
        "devices, cuda:0 and cpu!",
        source="aten/src/ATen/TensorIterator.cpp",
    ),
    Cause(
        name="endless-recursion",
        any_of=(r"RecursionError: maximum recursion depth exceeded",),
        words="a function calls itself without end: `__getattr__` that asks itself, as a rule",
        fix="look at the two lines that repeat in the traceback: `less +G {log}`",
        text="RecursionError: maximum recursion depth exceeded",
        source="CPython",
    ),
    Cause(
        name="wrong-arguments",
        any_of=(
            r"\w+(\.py)?: error: (?P<said>(unrecognized arguments|the following arguments are "
            r"required|argument |invalid choice).*)",
        ),
        exit_codes=(2,),
        words="the script does not take these words: {said}",
        fix="{again}, with words it knows",
        script_fix="python {script} --help",
        text="train.py: error: unrecognized arguments: --epoch 3",
        source="CPython Lib/argparse.py",
    ),
    Cause(
        name="assertion",
        any_of=(r"^AssertionError(: (?P<said>.{0,200}))?$",),
        grade="symptom",
        words="the code checks something that does not hold: {said}; {frame}",
        fix="read that line; the whole traceback: `less +G {log}`",
        text="AssertionError: batch is empty",
        source="CPython",
    ),
)
