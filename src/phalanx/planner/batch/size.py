"""How large the batch is: the global batch, its micro-batches, who runs how many of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from phalanx.errors import Finding
from phalanx.job.schema import Job
from phalanx.planner.schema.micro_batches import BatchPlan, deal
from phalanx.planner.schema.plan import Decision, Plan
from phalanx.planner.schema.trace import Trace

_EXACT_SLOTS = 8  # micro-batches of a step under determinism = exact: enough for eight ranks
BATCH_KEYS = ("global_batch_size", "batch_per_gpu", "gradient_accumulation")


@dataclass(frozen=True)
class BatchChoice:
    """The three sizes of a batch."""

    global_batch_size: Decision[int]
    micro_batch_size: Decision[int]
    accumulation: Decision[int]


def choose_batch(job: Job, ranks: int, frozen: int | None = None) -> BatchChoice:
    """Global batch, micro-batch and accumulation on a number of ranks.

    `frozen` is the global batch of a run that continues: it never changes again."""
    accumulation = job.gradient_accumulation or 1
    if frozen is not None:
        total = Decision(frozen, "kept from the run: a global batch never changes")
    elif job.batch_per_gpu is not None:
        value = job.batch_per_gpu * accumulation * ranks
        text = (
            f"{job.batch_per_gpu} per GPU x {accumulation} accumulation x {ranks} ranks = {value}"
        )
        total = Decision(value, f"{text}; fixed from here on")
    else:
        assert job.global_batch_size is not None
        total = Decision(job.global_batch_size, f"global_batch_size = {job.global_batch_size}")
    micro = _choose_micro(job, total.value, ranks)
    return BatchChoice(total, micro, micro_batches_per_rank(total.value, micro.value, ranks))


def micro_batches_per_rank(total: int, micro: int, ranks: int) -> Decision[int]:
    """Micro-batches of the busiest rank, and how they are dealt."""
    slots = ceil(total / micro)
    counts = [last - first for first, last in (deal(slots, rank, ranks) for rank in range(ranks))]
    if total % (micro * ranks) == 0:
        text = f"{total} = {micro} micro x {counts[0]} accumulation x {ranks} ranks"
    else:
        dealt = ", ".join(str(count) for count in counts[:8]) + (", ..." if ranks > 8 else "")
        text = f"{total} samples in {slots} micro-batches of at most {micro}, dealt as {dealt}"
    return Decision(max(counts), text)


def _choose_micro(job: Job, total: int, ranks: int) -> Decision[int]:
    if job.micro_batch_size is not None:
        value = min(job.micro_batch_size, total)
        return Decision(value, f"micro_batch_size = {job.micro_batch_size}")
    if job.batch_per_gpu is not None:
        return Decision(min(job.batch_per_gpu, total), f"batch_per_gpu = {job.batch_per_gpu}")
    if job.determinism == "exact":
        value = ceil(total / _EXACT_SLOTS)
        return Decision(value, f"{total} / {_EXACT_SLOTS}, rounded up: for exact, on any ranks")
    accumulation = job.gradient_accumulation or 1
    value = ceil(total / (ranks * accumulation))
    text = f"{total} / {ranks} ranks" + (f" / {accumulation}" if accumulation > 1 else "")
    return Decision(value, f"{text}, rounded up")


def keep_micro_batch(
    sizes: BatchChoice, previous: Plan, ranks: int
) -> tuple[BatchChoice, list[Finding]]:
    """A run that continues keeps its micro-batch: dropout and BatchNorm are per micro-batch. On so
    many ranks that some would have nothing to do it is cut smaller, and a Finding says so."""
    total, old = sizes.global_batch_size, previous.batch.micro_batch_size.value
    if old == sizes.micro_batch_size.value:
        return sizes, []
    # Never larger again: it may have been cut because a rank ran out of memory.
    if ceil(total.value / old) >= ranks or old < sizes.micro_batch_size.value:
        micro = Decision(old, "kept from the run: dropout and BatchNorm are per micro-batch")
        return BatchChoice(total, micro, micro_batches_per_rank(total.value, old, ranks)), []
    new = sizes.micro_batch_size.value
    return sizes, [
        Finding(
            slug="micro-batch-changed",
            what=f"the micro-batch was {old} and is {new} now",
            why=f"{total.value} samples in micro-batches of {old} leave ranks of {ranks} idle; "
            "dropout and BatchNorm are per micro-batch, so the curve differs slightly",
            fix=f"nothing, or keep it: `micro_batch_size={old}`",
            severity="warning",
        )
    ]


def choose_evaluate_batch(job: Job, micro: int, previous: Plan | None) -> Decision[int]:
    """Samples per forward in evaluation; a size that was cut for want of memory stays cut."""
    asked = job.evaluate.batch_size
    before = previous.history.shrunk.get("evaluate_batch_size") if previous is not None else None
    if previous is not None and before is not None and asked in (None, before):
        return previous.evaluation.evaluate_batch_size
    if asked is not None:
        return Decision(asked, f"evaluate.batch_size = {asked}")
    return Decision(micro, "the micro-batch")


def ignored_batch(job: Job, previous: Plan) -> list[Finding]:
    """Another batch than the run's own, asked for on resume."""
    frozen, asked = previous.batch.global_batch_size.value, previous.history.stated_batch
    findings = []
    for key in BATCH_KEYS:
        now = getattr(job, key)
        if now not in (None, asked.get(key), frozen):
            findings.append(
                Finding(
                    slug="batch-frozen",
                    what=f"`{key}` = {now} is ignored: the run's global batch stays {frozen}",
                    why=f"a run that continues keeps its global batch; it was made with "
                    f"{key} = {asked.get(key)}",
                    fix="start a new run from its weights: `init_from: RUN`",
                    severity="warning",
                )
            )
    return findings


def arithmetic_findings(job: Job, sizes: BatchChoice, ranks: int) -> list[Finding]:
    """Whether three stated sizes make up the batch on this number of ranks; where the job itself
    states the ranks, `job.rules` has judged them."""
    total, micro, accumulation = (
        job.global_batch_size,
        job.micro_batch_size,
        job.gradient_accumulation,
    )
    if total is None or micro is None or accumulation is None:
        return []
    product = micro * accumulation * ranks
    if product == total:
        return []
    return [
        Finding(
            slug="batch-arithmetic",
            what=f"{micro} per forward x {accumulation} micro-batches x {ranks} ranks = {product} "
            f"samples, which does not make up a global batch of {total}",
            why=f"global_batch_size = {total}, micro_batch_size = {micro}, gradient_accumulation = "
            f"{accumulation}; {ranks} ranks would add up {sizes.accumulation.value} micro-batches",
            fix=f"gradient_accumulation={sizes.accumulation.value}, or global_batch_size={product}",
        )
    ]


def batch_findings(batch: BatchPlan, ranks: int, trace: Trace, *, is_synced: bool) -> list[Finding]:
    findings = []
    slots = len(batch.slots_of(0))
    if batch.global_batch_size > batch.num_samples:
        findings.append(_beyond_the_data(batch))
    if slots < ranks:
        larger = ranks * batch.micro_batch_size
        findings.append(
            Finding(
                slug="idle-ranks",
                what=f"{ranks - slots} of {ranks} ranks have nothing to do",
                why=f"{min(batch.global_batch_size, batch.num_samples)} samples in micro-batches "
                f"of at most {batch.micro_batch_size} give {slots}",
                fix=f"--batch-size {larger}, or --gpus {slots}"
                if larger <= batch.num_samples
                else f"micro_batch_size={ceil(batch.num_samples / ranks)}, or --gpus {slots}",
                severity="warning",
            )
        )
    together = ranks if is_synced else 1
    if trace.has_batchnorm and batch.smallest_round(together) == 1:
        findings.append(
            Finding(
                slug="batchnorm-of-one",
                what=f"{_statistics_of(is_synced)} 1 sample, and the model has BatchNorm",
                why=f"{batch.num_samples} samples, global batch {batch.global_batch_size}, "
                f"micro-batch {batch.micro_batch_size}: at the end of an epoch or of every step "
                "one sample is left over; BatchNorm takes statistics over "
                f"{'what the ranks run at the same time' if is_synced else 'a micro-batch'}",
                fix=_batch_without_ones(batch, together),
                severity="warning",
            )
        )
    return findings


def _beyond_the_data(batch: BatchPlan) -> Finding:
    return Finding(
        slug="batch-beyond-data",
        what=f"a global batch of {batch.global_batch_size} is more than the {batch.num_samples} "
        "samples there are",
        why=f"every step sees all {batch.num_samples} samples of the train split once and is an "
        "epoch; a learning rate that is scaled with the batch is scaled for the larger one",
        fix=f"--batch-size {batch.num_samples}, or less",
        severity="warning",
    )


def _statistics_of(is_synced: bool) -> str:
    return "the ranks together hold" if is_synced else "a micro-batch holds"


def _batch_without_ones(batch: BatchPlan, together: int) -> str:
    """The nearest larger global batch that leaves no micro-batch of one sample."""
    for size in range(batch.global_batch_size, 2 * batch.global_batch_size + 2):
        for micro in (batch.micro_batch_size, size):
            if BatchPlan(batch.num_samples, size, micro).smallest_round(together) > 1:
                return f"global_batch_size={size} micro_batch_size={micro}"
    return "use GroupNorm in the model"


def expected_speedup(batch: BatchPlan, ranks: int) -> Decision[float]:
    """What the deal of micro-batches allows over one rank; communication comes on top."""
    if ranks == 1:
        return Decision(1.0, "one rank")
    busiest = deal(batch.num_slots, 0, ranks)[1]
    value = batch.num_slots / busiest
    return Decision(
        round(value, 2),
        f"at most: the busiest rank runs {busiest} of {batch.num_slots} micro-batches; "
        "communication is not counted",
    )
