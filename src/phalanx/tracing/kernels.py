"""From a call of a torch operator to the kernels that CUDA runs for it, and what each touches."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import tree_leaves

from phalanx.planner.schema.operators import Kind

Dimensions = tuple[int, int, int, int]
"""Of a product: `batch` times m x k by k x n, in the order batch, m, n, k."""


class Kernel(NamedTuple):
    """One kernel of a call."""

    kind: Kind
    name: str
    touched: list[Tensor]
    """Tensors read and written, each as often as it is."""
    dimensions: Dimensions | None = None
    flops: int = 0
    """Of what is no product of `dimensions`."""


class Call:
    """A call of an operator; its arguments by their names in the operator's schema."""

    def __init__(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: list[Tensor]
    ) -> None:
        self.name, names = _schema(func)
        self.args = args
        self.out = out
        self._named = dict(zip(names, args, strict=False)) | kwargs

    def __getitem__(self, name: str) -> Any:
        return self._named.get(name)

    def tensors(self) -> list[Tensor]:
        """Distinct tensors among the arguments."""
        found = {id(tensor): tensor for tensor in tensors_in(self._named)}
        return list(found.values())


Rule = Callable[[Call], list[Kernel]]


def kernels_of(call: Call) -> list[Kernel]:
    """What a call runs; a view runs nothing and costs the host's time only."""
    rule = _RULES.get(call.name)
    if rule is not None:
        return rule(call)
    if call.name.startswith("_scaled_dot_product"):
        return _attention(call)
    if call.name.startswith(_EMPTY) or call.name in _VIEWS_IN_PLACE or _is_view(call):
        return [Kernel("view", call.name, call.out)]
    read = call.tensors()
    if call.name in _OVERWRITE:
        read = [tensor for tensor in read if tensor is not call.out[0]]
    kind: Kind = "copy" if call.name in _COPIES else "memory"
    return [Kernel(_REDUCTIONS.get(call.name, kind), call.name, [*read, *call.out])]


def tensors_in(values: Any) -> list[Tensor]:
    """Return the tensors of any nesting of lists, tuples and dicts."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


@cache
def _schema(func: Any) -> tuple[str, tuple[str, ...]]:
    schema = func._schema
    return schema.name.rpartition("::")[2], tuple(argument.name for argument in schema.arguments)


_EMPTY = ("empty", "new_empty")
_VIEWS_IN_PLACE = ("transpose_", "t_", "squeeze_", "unsqueeze_", "as_strided_", "resize_", "set_")
_OVERWRITE = ("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_")
"""What they write to is not read."""


_COPIES = ("_to_copy", "clone", "copy_", "contiguous")
_REDUCTIONS: dict[str, Kind] = dict.fromkeys(
    ("sum", "mean", "amax", "amin", "max", "min", "argmax", "cumsum", "linalg_vector_norm", "var"),
    "reduction",
)


def _is_view(call: Call) -> bool:
    if call.name.endswith("_"):
        return False
    stored = {tensor.untyped_storage()._cdata for tensor in call.tensors()}
    return call.out[0].untyped_storage()._cdata in stored


def _product(call: Call, a: Tensor, b: Tensor, *rest: Tensor | None) -> list[Kernel]:
    batch = a.shape[0] if a.dim() == 3 else 1
    n = b.shape[-1] if b.dim() > 1 else 1
    touched = [tensor for tensor in (a, b, *rest, *call.out) if tensor is not None]
    return [Kernel("product", call.name, touched, (batch, a.shape[-2], n, a.shape[-1]))]


def _mm(call: Call) -> list[Kernel]:
    return _product(call, call.args[0], call.args[1])


def _addmm(call: Call) -> list[Kernel]:
    return _product(call, call.args[1], call.args[2], call.args[0])


def _linear(call: Call) -> list[Kernel]:
    x, weight = call["input"], call["weight"]
    dimensions = (1, x.numel() // x.shape[-1], weight.shape[0], x.shape[-1])
    return [Kernel("product", call.name, [*call.tensors(), *call.out], dimensions)]


def _convolution_dimensions(call: Call, positions: Tensor) -> Dimensions:
    """Of the product of unfolded windows; `positions` is the output, of a transposed convolution
    the input."""
    weight, groups = call["weight"], call["groups"]
    rows = positions.shape[0] * math.prod(positions.shape[2:])
    window = math.prod(weight.shape[2:])
    if call["transposed"]:
        return groups, rows, weight.shape[1] * window, weight.shape[0] // groups
    return groups, rows, weight.shape[0] // groups, weight.shape[1] * window


def _convolution(call: Call) -> list[Kernel]:
    x, weight, bias, (out,) = call["input"], call["weight"], call["bias"], call.out
    dimensions = _convolution_dimensions(call, x if call["transposed"] else out)
    kernels = [Kernel("product", call.name, [x, weight, out], dimensions)]
    if bias is not None:
        kernels.append(Kernel("memory", "add_", [out, bias, out]))
    return kernels


def _convolution_backward(call: Call) -> list[Kernel]:
    x, weight, grad = call["input"], call["weight"], call["grad_output"]
    groups, rows, n, k = _convolution_dimensions(call, x if call["transposed"] else grad)
    wants_input, wants_weight, wants_bias = call["output_mask"]
    kernels = []
    if wants_input:
        name = f"{call.name} input"
        kernels.append(Kernel("product", name, [grad, weight, x], (groups, rows, k, n)))
    if wants_weight:
        name = f"{call.name} weight"
        kernels.append(Kernel("product", name, [grad, x, weight], (groups, n, k, rows)))
    if wants_bias:
        kernels.append(Kernel("reduction", "sum", [grad, call.out[-1]]))
    return kernels


def _attention(call: Call) -> list[Kernel]:
    q, k, v = call["query"], call["key"], call["value"]
    heads, (rows, width), columns = math.prod(q.shape[:-2]), q.shape[-2:], k.shape[-2]
    flops = 2 * heads * rows * columns * (width + v.shape[-1])
    name, touched = "attention", [q, k, v, call.out[0]]
    if call.name.endswith("_backward"):
        # Five products against two.
        flops, name = flops * 5 // 2, "attention_backward"
        touched = [q, k, v, call["out"], call.args[0], *call.out]
    mask = call["attn_mask"] if call["attn_mask"] is not None else call["attn_bias"]
    if mask is not None:
        touched.append(mask)
        name += " masked"
    if call["is_causal"]:
        name += " causal"
    return [Kernel("attention", name, touched, (heads, rows, columns, width), flops)]


def _recurrence(call: Call) -> list[Kernel]:
    """One per layer and direction: a product with the inputs of all steps, and in each step one
    with the state, whose dimensions it has."""
    weights, pieces = call["weights"], call["layers"] * call["directions"]
    is_backward = call.name.endswith("_backward")
    first, reserve = call["input"], call["reserve"] if is_backward else call.out[-pieces:]
    above = call["grad"] if is_backward else call.out[0]
    steps, samples = first.shape[:2]
    each = len(weights) // pieces
    kernels = []
    for i, kept in enumerate(reserve):
        own = weights[i * each : (i + 1) * each]
        flops = 2 * steps * samples * sum(w.numel() for w in own if w.dim() == 2)
        touched = [first if i < call["directions"] else above, kept, *own]
        if is_backward:  # gradients of what is fed and of the weights, each as much as forward
            flops, touched = 2 * flops, 2 * touched
        dimensions = (steps, samples, *own[1].shape)
        kernels.append(Kernel("recurrence", call.name, touched, dimensions, flops))
    return kernels


def _gather(call: Call) -> list[Kernel]:
    """Rows of a table: as much of it as is written."""
    _, *index = call.tensors()
    return [Kernel("memory", call.name, [*call.out, *index, *call.out])]


def _scatter(call: Call) -> list[Kernel]:
    """Rows added to a table: read, and as much of it read and written."""
    table, *others = call.tensors()
    rows = [tensor for tensor in others if tensor.is_floating_point()]
    copied = [] if call.name.endswith("_") else [table, *call.out]
    return [Kernel("reduction", call.name, [*others, *rows, *rows, *copied])]


def _embedding_backward(call: Call) -> list[Kernel]:
    grad, indices = call["grad_output"], call["indices"]
    return [Kernel("reduction", call.name, [grad, indices, grad, *call.out])]


def _part_backward(call: Call) -> list[Kernel]:
    """Zeros, and the gradient of a part written into them."""
    grad = call["grad_output"]
    return [Kernel("memory", call.name, [*call.out, grad, grad])]


def _nll_loss(call: Call) -> list[Kernel]:
    """Reads one number of each row."""
    target = call["target"]
    return [Kernel("memory", call.name, [target, target, *call.out])]


def _max_pool_backward(call: Call) -> list[Kernel]:
    return [Kernel("reduction", call.name, [call["grad_output"], call["indices"], *call.out])]


def _norm(call: Call) -> list[Kernel]:
    """Rows of what is normalised together, their number and their length; a block of threads has a
    row. Where statistics take a pass of their own, inputs are read twice."""
    x, read = call["input"], call.tensors()
    twice = [t for t in (x, call["grad_out"]) if t is not None]
    if "batch_norm" in call.name:
        rows = x.shape[1]
    elif "group_norm" in call.name:
        rows = x.shape[0] * call["group"]
    else:
        rows = x.numel() // math.prod(call["normalized_shape"])
        twice = twice if call.name.endswith("_backward") else []
    dimensions = (1, rows, x.numel() // rows, 1)
    return [Kernel("norm", call.name, [*read, *twice, *call.out], dimensions, 1)]


_GATHERS = "embedding index index_select gather take take_along_dim _unsafe_index"
_SCATTERS = (
    "index_put index_put_ _index_put_impl_ _unsafe_index_put index_add index_add_ scatter_add "
    "scatter_add_ scatter scatter_ index_copy index_copy_"
)
_NORMS = (
    "native_batch_norm _native_batch_norm_legit _batch_norm_with_update cudnn_batch_norm "
    "native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward native_group_norm "
    "native_group_norm_backward native_layer_norm native_layer_norm_backward _fused_rms_norm "
    "_fused_rms_norm_backward"
)
_RULES: dict[str, Rule] = {
    **dict.fromkeys(("mm", "bmm", "mv"), _mm),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "_addmm_activation"), _addmm),
    "linear": _linear,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(("attention", "attention_backward"), _attention),
    **dict.fromkeys(("recurrence", "recurrence_backward"), _recurrence),
    **dict.fromkeys(_GATHERS.split(), _gather),
    **dict.fromkeys(_SCATTERS.split(), _scatter),
    "embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(("slice_backward", "select_backward"), _part_backward),
    **dict.fromkeys(
        ("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"),
        _nll_loss,
    ),
    "max_pool2d_with_indices_backward": _max_pool_backward,
    **dict.fromkeys(_NORMS.split(), _norm),
}
