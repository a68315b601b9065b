"""What compiled code would allocate and launch: AOTAutograd's graphs on tensors without values.

Inductor makes one kernel of operators that compute element by element, and of the sums among them:
what passes between them is never in memory. Products, convolutions, attention and whatever else has
a kernel of its own are run as they are. So a tensor is made only where such an operator reads it,
where the graph gives it back, or where a sum is needed outside of its kernel; each is freed after
its last use, and a kernel writes over what it reads last.

Not modelled: what inductor's own passes change, and kernels that it splits or does not join.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map_only

from phalanx.tracing.kernels import tensors_in

_REDUCTION_NAMES = "sum mean amax amin var var_mean prod any all argmax argmin max min logsumexp"
_FUSED_NAMES = (
    "convert_element_type full full_like iota arange rand randn rand_like where clone copy cat "
    "gather index embedding index_select _to_copy constant_pad_nd slice_scatter select_scatter "
    "zeros zeros_like ones ones_like scalar_tensor empty_strided empty lift_fresh_copy flip "
    "repeat native_dropout bernoulli tril triu fill"
)
"""Read and written element by element, though torch does not tag them so."""

_REDUCTIONS, _FUSED = frozenset(_REDUCTION_NAMES.split()), frozenset(_FUSED_NAMES.split())


class Device(Protocol):
    """Where kernels that nobody calls are counted."""

    def running(self) -> AbstractContextManager[Any]:
        """Around compiled code."""
        ...

    def launch(self, read: list[Tensor], written: list[Tensor]) -> None: ...

    def allocate(self, like: Tensor) -> Tensor: ...


@dataclass
class _Kernel:
    elements: int
    """What it goes over."""
    sizes: set[int]
    """Of what may be computed in it: that, and rows that it has added up."""
    is_outer: bool | None = None
    """Which way its sums go: over rows, or along them; None without any."""
    nodes: list[fx.Node] = field(default_factory=list)
    read: set[fx.Node] = field(default_factory=set)


class FusedGraph:
    """A graph that runs as inductor's code would; called with a list, which it empties."""

    _boxed_call = True

    def __init__(self, graph: fx.GraphModule, device: Device, *, may_donate: bool) -> None:
        """`may_donate`: the inputs that nobody else holds may be written over."""
        self._device = device
        self._may_donate = may_donate
        self._nodes = list(graph.graph.nodes)
        self._constants = {
            node: getattr(graph, str(node.target)) for node in self._nodes if node.op == "get_attr"
        }
        self._output = self._nodes[-1]
        self._is_made = self._choose_made()
        self._reads = {node: self._read_by(node) for node in self._nodes if self._is_made[node]}
        self._reads[self._output] = self._read_by(self._output)
        self._kernel_of = self._join()
        self._drop_inner()
        self._dying = self._last_uses()

    # -- what is in memory

    def _choose_made(self) -> dict[fx.Node, bool]:
        made = {node: _is_made(node) for node in self._nodes}
        for node in self._nodes:
            if _kind(node) in ("own", "output"):
                for argument in node.all_input_nodes:
                    made[_base(argument)] = True
        return made

    def _read_by(self, node: fx.Node) -> set[fx.Node]:
        """What is in memory and read when a node is computed, through all that is not."""
        found: set[fx.Node] = set()
        waiting, seen = list(node.all_input_nodes), set()
        while waiting:
            argument = waiting.pop()
            if argument in seen:
                continue
            seen.add(argument)
            if self._is_made[argument]:
                found.add(argument)
            else:
                waiting += argument.all_input_nodes
        return found

    def _join(self) -> dict[fx.Node, _Kernel]:
        """Kernels: neighbours of one size that share something, up to the next own kernel."""
        joined: dict[fx.Node, _Kernel] = {}
        opened: list[_Kernel] = []
        for node in self._nodes:
            kind = _kind(node)
            if kind == "own":
                opened = []
            if kind not in ("fused", "sum") or not self._is_made[node]:
                continue
            elements, is_outer = _elements(node), _is_outer(node)
            own = _largest(node)
            shared = self._reads[node]
            for kernel in opened:
                is_one_way = None in (is_outer, kernel.is_outer) or is_outer == kernel.is_outer
                is_inside = elements == kernel.elements or (kind == "fused" and own in kernel.sizes)
                if is_inside and is_one_way and shared & (kernel.read | {*kernel.nodes}):
                    break
            else:
                kernel = _Kernel(elements, {elements})
                opened.append(kernel)
            kernel.sizes.add(own)
            kernel.nodes.append(node)
            kernel.read |= shared - {*kernel.nodes}
            kernel.is_outer = is_outer if kernel.is_outer is None else kernel.is_outer
            joined[node] = kernel
        return joined

    def _drop_inner(self) -> None:
        """A sum that only its own kernel reads stays inside of it."""
        users: dict[fx.Node, set[Any]] = {}
        for node, read in self._reads.items():
            for source in read:
                users.setdefault(source, set()).add(id(self._kernel_of.get(node, node)))
        for node, kernel in self._kernel_of.items():
            is_inner = users.get(node, set()) <= {id(kernel)}
            if is_inner and len(kernel.nodes) > 1:
                self._is_made[node] = False
        self._reads = {
            node: self._read_by(node)
            for node in self._nodes
            if self._is_made[node] or node is self._output
        }
        for kernel in {id(k): k for k in self._kernel_of.values()}.values():
            kernel.nodes = [node for node in kernel.nodes if self._is_made[node]]
            inside = {*kernel.nodes}
            kernel.read = {s for n in kernel.nodes for s in self._reads[n]} - inside

    def _last_uses(self) -> dict[fx.Node, list[fx.Node]]:
        last: dict[fx.Node, fx.Node] = {}
        for node in self._nodes:
            for source in self._reads.get(node, ()):
                last[source] = node
        dying: dict[fx.Node, list[fx.Node]] = {}
        for source, node in last.items():
            if node is not self._output:
                dying.setdefault(node, []).append(source)
        return dying

    # -- a run

    def __call__(self, arguments: list[Any]) -> list[Any]:
        with self._device.running():
            return self._run(arguments)

    def _run(self, arguments: list[Any]) -> list[Any]:
        values: dict[fx.Node, Any] = dict(self._constants)
        places = [node for node in self._nodes if node.op == "placeholder"]
        values |= zip(places, arguments, strict=True)
        arguments.clear()
        launched = set()
        used = {source for read in self._reads.values() for source in read}
        for node in places:
            if node not in used:
                del values[node]
        for node in self._nodes:
            if node.op in ("placeholder", "get_attr", "output") or not self._is_made[node]:
                continue
            kernel = self._kernel_of.get(node)
            if kernel is None:
                values[node] = self._call(node, values)
            else:
                for source in list(self._written_over(node, values)):
                    del values[source]
                values[node] = tree_map_only(Tensor, self._device.allocate, node.meta["val"])
                if id(kernel) not in launched:
                    launched.add(id(kernel))
                    read, written = (
                        tensors_in([node.meta["val"] for node in nodes])
                        for nodes in (kernel.read, kernel.nodes)
                    )
                    self._device.launch(read, written)
            for source in self._dying.get(node, ()):
                values.pop(source, None)
        return [self._value(given, values) for given in self._output.args[0]]

    def _call(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        if node.target is operator.getitem:
            return self._value(node.args[0], values)[node.args[1]]
        assert callable(node.target)
        args, kwargs = fx.node.map_arg(
            (node.args, node.kwargs), lambda argument: self._value(argument, values)
        )
        return node.target(*args, **kwargs)

    def _value(self, given: Any, values: dict[fx.Node, Any]) -> Any:
        """A node's tensor; a view of one in memory is made anew."""
        if not isinstance(given, fx.Node) or given in values:
            return values[given] if isinstance(given, fx.Node) else given
        return self._call(given, values)

    def _written_over(self, node: fx.Node, values: dict[fx.Node, Any]) -> Iterator[fx.Node]:
        """One input of the same size that nobody reads later."""
        made = node.meta["val"]
        if not isinstance(made, Tensor):
            return
        for source in self._dying.get(node, ()):
            value = values.get(source)
            is_ours = self._may_donate or source.op != "placeholder"
            if is_ours and isinstance(value, Tensor) and value.nbytes == made.nbytes:
                yield source
                return


def _kind(node: fx.Node) -> str:
    """`input`, `output`, `view`, `pick` (one of several results), `sum`, `fused`, or `own` for
    what has a kernel of its own."""
    if node.op in ("placeholder", "get_attr"):
        return "input"
    if node.op == "output":
        return "output"
    target: Any = node.target
    if target is operator.getitem:
        return "pick"
    if not isinstance(target, torch._ops.OpOverload):
        return "own"
    name = target._schema.name.rpartition("::")[2]
    if target.is_view or name in ("view", "reshape", "_unsafe_view", "detach", "alias"):
        return "view"
    if name in _REDUCTIONS:
        return "sum"
    if name in _FUSED or torch.Tag.pointwise in target.tags:
        return "fused"
    if name == "scatter" and _is_constant(node.args[0]):
        return "fused"  # the gradient of a choice: compared with the index instead
    return "own"


def _is_constant(given: Any) -> bool:
    return isinstance(given, fx.Node) and given.target is torch.ops.aten.full.default


def _is_made(node: fx.Node) -> bool:
    """Whether it is in memory whoever reads it."""
    if _kind(node) == "pick":
        return _kind(node.all_input_nodes[0]) == "own"
    return _kind(node) not in ("fused", "view")


def _base(node: fx.Node) -> fx.Node:
    while _kind(node) in ("view", "pick") and not _is_made(node):
        node = node.all_input_nodes[0]
    return node


def _elements(node: fx.Node) -> int:
    """What a kernel goes over: what it writes, or what it adds up."""
    return _largest(node.all_input_nodes[0] if _kind(node) == "sum" else node)


def _largest(node: fx.Node) -> int:
    """Elements of the largest tensor that a node gives."""
    return max((tensor.numel() for tensor in tensors_in(node.meta["val"])), default=0)


def _is_outer(node: fx.Node) -> bool | None:
    if _kind(node) != "sum":
        return None
    source = node.all_input_nodes[0].meta["val"]
    dims = node.args[1] if len(node.args) > 1 else None
    if not isinstance(source, Tensor) or not isinstance(dims, (list, tuple)):
        return False
    return not any(dim in (-1, source.dim() - 1) for dim in dims)
