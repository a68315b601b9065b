"""From the first difference between two recorded runs to its usual cause and what mends it. The
difference is a fact; the cause is the usual one for what is seen around it."""

from __future__ import annotations

from typing import Any

from phalanx.diagnose.compare import Comparison, Measured
from phalanx.diagnose.evidence import Evidence
from phalanx.diagnose.recording import Recording
from phalanx.errors import Finding, name_some
from phalanx.job.strategies import facts_of

KEYS = "draw from the keys (`keys.normal(sample_keys, ...)` of phalanx.recipe), in data and loss"

_TERM = (
    "return `Term(sum over the micro-batch, its weight)`: no division by the number of ranks, no "
    "all_reduce"
)


def explain(compared: Comparison, one: Recording, many: Recording) -> Finding | None:
    """The first difference with its usual cause; None when the runs are the same."""
    first = compared.first
    if first is not None:
        return _Cause(first, one, many, compared.tolerance).find()
    return explain_not_finite(compared)


def explain_not_finite(compared: Comparison) -> Finding | None:
    """A loss that is no number on either side."""
    if compared.not_finite is None:
        return None
    step, term = compared.not_finite
    return Finding(
        slug="verify-not-finite",
        what=f"step {step + 1}: the loss term `{term}` is no finite number on 1 rank either",
        why="runs that overflow cannot be compared; the learning rate may be too large, or the "
        "data hold something that is no number",
        fix="fewer steps (`--steps 1`), or a smaller rate (`--lr`)",
    )


def explain_crash(findings: list[Finding]) -> Finding | None:
    """Why a run on one rank crashes that would not on many, if that is seen."""
    crash = next((f for f in findings if f.slug in ("rank-crashed", "no-process-group")), None)
    if crash is None or "process group" not in crash.what + crash.why:
        return None
    return Finding(
        slug="verify-needs-ranks",
        what="on 1 rank the recipe asks for other ranks, and there are none",
        why=f"{crash.why}; a recipe that knows how many ranks there are is not the same on one",
        fix=f"{_TERM}; the same code then runs on 1 rank",
    )


class _Cause:
    """Reads one cause from the evidence, kind by kind."""

    def __init__(self, first: Measured, one: Recording, many: Recording, tolerance: float) -> None:
        self._first = first
        self._world = many.world
        self._evidence = Evidence(first, one, many, tolerance)
        self._strategy = self._evidence.start.strategy

    def find(self) -> Finding:
        kind = self._first.kind
        if kind == "samples":
            return self._samples()
        if kind == "batch":
            return self._batch()
        if self._first.step < 0:
            return self._start()
        if kind == "loss":
            return self._loss()
        if kind == "gradient":
            return self._gradient()
        if self._evidence.is_rounding():
            return explain_rounding(self._what())
        return self._buffer() if kind == "buffer" else self._weight()

    def _what(self) -> str:
        """Where, both values, how far apart."""
        first, when = self._first, self._first.when
        on_rank = f" (rank {first.rank})" if first.rank is not None else ""
        a, b = "on 1 rank", f"on {self._world} ranks"
        if first.kind == "batch" and (parts := self._evidence.content_that_differs()):
            return (
                f"{when}, {first.place}{on_rank}: the same samples were asked for, their content "
                f"differs: {'; '.join(parts[:3])}"
            )
        if first.kind in ("samples", "batch"):
            name = "the samples asked for are" if first.kind == "samples" else "the batch has hash"
            values = f"{_shown(first.one)} {a} and {_shown(first.many)} {b}"
            return f"{when}, {first.place}{on_rank}: {name} {values}"
        is_tensor = first.kind != "loss"
        name = f"the {first.kind} of `{first.place}`" if is_tensor else f"{first.place}{on_rank}"
        return self._evidence.describe(name, (a, b))

    def _samples(self) -> Finding:
        return Finding(
            slug="verify-samples",
            what=self._what(),
            why="which samples a slot asks for follows from seed, epoch and position alone: this "
            "is a fault of Phalanx, or of code that changes its order",
            fix="report it with both recordings: `phalanx verify ... --keep DIR`",
        )

    def _batch(self) -> Finding:
        evidence = self._evidence
        given = evidence.sample_given_instead()
        parts = name_some(evidence.parts_that_differ())
        asked, nearest, part = evidence.nearest_sample() or (0, None, "")
        if given is not None:
            return self._data_by_rank(given)
        if nearest not in (None, asked):
            return self._data_by_rank(
                f"asked for sample {asked}, it gave a `{part}` that is nearest to that of {nearest}"
            )
        if nearest is None and evidence.is_another_sample():
            return self._data_by_rank(
                f"{parts} differ, as much as between samples: it is another sample, or augmented "
                "beyond recognition"
            )
        which = f"only {parts} differs; " if parts else ""
        if nearest is not None:
            which += f"it is still sample {asked}, augmented otherwise; "
        return Finding(
            slug="verify-data-random",
            what=self._what(),
            why=f"{which}{evidence.ranks_that_differ()}: usually "
            "randomness tied to the rank or to what was drawn before, such as a generator seeded "
            "with RANK or made once for the data set",
            fix=KEYS,
        )

    def _data_by_rank(self, seen: str) -> Finding:
        return Finding(
            slug="verify-data-by-rank",
            what=self._what(),
            why=f"{seen}; {self._evidence.ranks_that_differ()}: the data set picks samples by RANK "
            "or WORLD_SIZE itself, so that some repeat and others are never seen",
            fix="return the samples of `ids` and nothing else, Phalanx deals them to the ranks: "
            "take samplers, `[rank::world]` and `shard(...)` out of the data set",
        )

    def _start(self) -> Finding:
        first = self._first
        if first.one is None or first.many is None:
            seen = "it is there on one side only"
        elif first.place in self._evidence.start.outside:
            seen = "groups() gives it to the optimizer and the model has not got it"
        elif first.place in self._evidence.start.frozen:
            return self._written("passes that are discarded before the first step changed it")
        else:
            seen = "it is made in model()"
        return Finding(
            slug="verify-initial-weights",
            what=self._what(),
            why=f"{seen}; usually model() or groups() looks at RANK or WORLD_SIZE, or draws from a "
            "generator of its own",
            fix="build the same model everywhere: torch's generator is seeded alike on every rank "
            "before model() is called",
        )

    def _loss(self) -> Finding:
        evidence = self._evidence
        called, factor = evidence.collectives(), evidence.world_factor()
        if "weight()" in self._first.place:
            return self._world_in_loss("weight(batch) knows more than its micro-batch")
        if called:
            return self._world_in_loss(f"the loss talks to other ranks itself: {name_some(called)}")
        if factor is not None:
            return self._world_in_loss(
                f"every term that differs is {factor} what it is on one rank: the number of ranks "
                "is in the loss"
            )
        if evidence.is_rounding():
            return explain_rounding(self._what())
        changed = evidence.buffers_changed()
        if changed:
            return self._buffers(
                f"forward changes {name_some(changed)} and the loss depends on it; on one rank it "
                "has seen all slots before, on many only those of its rank"
            )
        return Finding(
            slug="verify-loss-by-rank",
            what=self._what(),
            why=f"the batch is the same; {evidence.ranks_that_differ()}: usually randomness tied "
            "to the rank in loss or model (a generator seeded with RANK), or something that loss "
            "or model carries from slot to slot",
            fix=f"{KEYS}; dropout and all of torch's own generator is seeded per slot already",
        )

    def _world_in_loss(self, seen: str) -> Finding:
        return Finding(
            slug="verify-loss-world",
            what=self._what(),
            why=f"{seen}; Phalanx itself adds up the sums of all slots and divides them by the "
            "weight of the global batch, so this comes on top of it",
            fix=_TERM,
        )

    def _gradient(self) -> Finding:
        evidence = self._evidence
        apart = evidence.disagreement("gradients")
        if apart is not None:
            return self._not_reduced(apart)
        if evidence.is_rounding():
            return explain_rounding(self._what())
        factor, called = evidence.world_factor(), evidence.collectives()
        seen = f"it is {factor} what it is on one rank; " if factor else ""
        seen += f"loss or model talk to other ranks: {name_some(called)}; " if called else ""
        return Finding(
            slug="verify-gradient",
            what=self._what(),
            why=f"{seen}all losses are equal and all ranks agree on it: something between loss and "
            "gradient knows the ranks, such as a gradient hook or an autograd.Function",
            fix=f"look at what backward does on the way to `{self._first.place}`",
        )

    def _not_reduced(self, apart: str) -> Finding:
        name, strategy = self._first.place, self._strategy
        if name in self._evidence.start.outside:
            where = f"groups() gives it to the optimizer, the model has not got it and {strategy} "
            where += "does not know it"
            fix = "make it a parameter of what model() returns: `self.NAME = nn.Parameter(...)`"
        elif name in self._evidence.start.frozen:
            where = f"it was frozen (requires_grad=False) when training began, and {strategy} "
            where += "takes in only what learns from the start"
            fix = "requires_grad_(True) in model(); hold it back with `lr_scale: 0` in groups()"
        else:
            where = f"{strategy} leaves it out: it came into the model after training began"
            if facts_of(strategy).has_ddp_wrapper:
                where += ", or is among _ddp_params_and_buffers_to_ignore"
            fix = f"let model() return `{name}` as an ordinary parameter"
        return Finding(
            slug="verify-not-reduced",
            what=self._what(),
            why=f"{apart}: each rank keeps its own gradient; {where}",
            fix=fix,
        )

    def _weight(self) -> Finding:
        apart = self._evidence.disagreement("parameters") or "all ranks agree on it"
        return self._written(f"the gradients of this step are equal; {apart}")

    def _written(self, seen: str) -> Finding:
        is_frozen = self._first.place in self._evidence.start.frozen
        who = "it is frozen and changes: " if is_frozen else ""
        return Finding(
            slug="verify-weight",
            what=self._what(),
            why=f"{seen}; {who}usually loss, forward or a hook writes into the weight itself, such "
            "as an average of other weights; or groups() differ by rank",
            fix="leave the weights to the optimizer; for an average of them there is `ema.decay`",
        )

    def _buffer(self) -> Finding:
        if self._first.place in self._evidence.start.statistics:
            return self._buffers(
                "BatchNorm's statistics are folded once per slot; usually one forward runs this "
                "layer twice, or not at all"
            )
        return self._buffers("forward changes it on each rank, and there is no rule to combine it")

    def _buffers(self, seen: str) -> Finding:
        return Finding(
            slug="verify-buffers",
            what=self._what(),
            why=f"{seen}: running statistics that are not combined over the ranks",
            fix="torch's BatchNorm, run once per forward, is combined slot by slot; GroupNorm and "
            "LayerNorm have nothing to combine",
        )


def explain_rounding(what: str) -> Finding:
    """A difference as small as float32's rounding."""
    return Finding(
        slug="verify-rounding",
        what=what,
        why="what comes before agrees and the difference is as small as float32's rounding: "
        "part of model or loss computes in less than float64, such as `.float()`; or gradients "
        "are so near zero that Adam magnifies their last bits (BatchNorm over two samples)",
        fix="take the cast out (`x.to(weight.dtype)`), or measure by float32: --tolerance 1e-5",
    )


def _shown(value: Any) -> str:
    """A list of ids or a hash, cut to what fits a line."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return value[:12]
    shown = ", ".join(str(item) for item in value[:6])
    return f"[{shown}{', ...' if len(value) > 6 else ''}]"
