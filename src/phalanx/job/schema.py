"""What a job file may say: every key with its type, default and meaning.

The docstring under a field is its help text: `phalanx explain KEY`, the JSON Schema for editors and
docs/reference/job.md all print it. Rules that need more than one key are in `job.rules`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from phalanx.job.source.value_types import Cache, Every, Fast, Interval, Strict, Switch

Seconds = Annotated[float, Field(gt=0, le=10**7, allow_inf_nan=False)]
_MANY = 10**9  # more epochs, steps or samples at a time than anybody means


class Devices(Strict):
    """Where to train. Nothing given: every GPU, else MPS, else two CPU processes."""

    gpus: Literal["all"] | int | list[int] | None = None
    """`all`, a number of GPUs, or a list of GPU ids such as `[0, 2, 3]`."""
    cpu: int | None = Field(default=None, ge=1)
    """Train on this many CPU processes instead of GPUs."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """How ranks talk: `nccl` between GPUs, `gloo` between CPU processes. `auto` takes what
    TORCH_DISTRIBUTED_BACKEND names, else what fits the devices."""
    comm_timeout_s: float = Field(default=600.0, gt=0, le=10**7, allow_inf_nan=False)
    """Seconds that a rank waits for the others in an exchange before it gives up."""

    min_nodes: int | None = Field(default=None, ge=1)
    """Go on with the nodes that are left when one is lost, if there are at least this many: the
    same global batch and the same samples in every step, on fewer ranks. `null`: the run ends."""
    node_wait_s: float = Field(default=300.0, ge=0, le=10**7, allow_inf_nan=False)
    """Seconds that a lost node is waited for, first: when it is back, all ranks start again from
    the last checkpoint."""


class Optimizer(Strict):
    """The optimizer and its learning rate."""

    name: Literal["adamw", "sgd"] = "adamw"
    """`adamw` or `sgd`."""
    lr: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    """The learning rate, stated for a global batch of `lr_batch` samples."""
    lr_batch: int | None = Field(default=None, ge=1)
    """The global batch `lr` was found for. Default: the job's own global batch, or one GPU's share
    when the batch is stated as `batch_per_gpu`."""
    lr_rule: Literal["auto", "linear", "sqrt", "none"] = "auto"
    """How `lr` follows the batch: lr x batch/lr_batch, its square root, or not at all. `auto` is
    linear from a global batch of 256 on and leaves the rate alone below."""
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    """Decay per step, decoupled for AdamW."""
    betas: list[float] = Field(default=[0.9, 0.999], min_length=2, max_length=2)
    """AdamW's two averaging constants."""
    eps: float = Field(default=1e-8, gt=0)
    """AdamW's denominator guard."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """SGD's momentum."""
    nesterov: bool = False
    """Nesterov momentum for SGD."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Clip the global gradient norm to this value."""


class Schedule(Strict):
    """How the learning rate moves. It counts optimizer steps, never processes."""

    name: Literal["constant", "linear", "cosine"] = "cosine"
    """Shape after warm-up."""
    warmup: Literal["auto"] | Every = "auto"
    """Linear rise from 0: `auto`, `500 steps`, `5 epochs` or `5%`."""
    warmup_momentum: float | None = Field(default=None, ge=0, lt=1)
    """SGD's momentum at the beginning of the warm-up, from which it rises to what it is afterwards.
    `null`: the same momentum all the time."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """What the rate falls towards, as a fraction of the peak rate."""


class Ema(Strict):
    """The exponential moving average of the weights, kept beside them and saved with them."""

    decay: float | None = Field(default=None, gt=0, lt=1, allow_inf_nan=False)
    """How much of the average stays at each optimizer step, such as 0.999; `null` keeps none."""
    warmup: bool = False
    """Begin with a smaller decay: the lesser of `decay` and (1 + n) / (10 + n) after n steps."""
    ramp: int | None = Field(default=None, ge=1)
    """Let the decay rise over about so many steps: it is multiplied by 1 - exp(-n / ramp) in the
    n-th one. Exclusive with `warmup`."""
    buffers: bool = False
    """Average BatchNorm's statistics and other buffers, too; `false` takes the model's own."""
    evaluate: bool = True
    """Evaluate the averaged weights, which then also decide what is best; `false` evaluates the
    weights themselves."""


class Evaluate(Strict):
    """When to evaluate, and what counts as best."""

    every: Every | None = Interval(count=1, unit="epochs")
    """How often to evaluate; `null` evaluates only at the end."""
    at_start: bool = False
    """Evaluate also before the first step: what the model can do already."""
    batch_size: int | None = Field(default=None, ge=1, le=_MANY)
    """Samples per forward in evaluation. Default: the micro-batch."""
    metric: str | None = None
    """The metric that decides what is best. Default: the recipe's own choice."""
    mode: Literal["max", "min"] | None = None
    """Whether a larger or a smaller metric is better. Default: the recipe's own choice."""
    early_stopping: int | None = Field(default=None, ge=1)
    """Stop after this many evaluations in a row without a better metric."""


class Checkpoint(Strict):
    """When to save, and how much to keep."""

    every: Literal["auto"] | Every | None = "auto"
    """How often to save: `500 steps`, `1 epochs`, `10 minutes`; `null` saves only at the end.
    `auto` saves after each epoch and at least every 10 minutes, less often where training would
    stand still for more than 1% of the time."""
    keep: int = Field(default=2, ge=2)
    """How many of the newest checkpoints to keep, besides the best. At least 2: the newest may be
    the one that is damaged."""
    keep_best: int = Field(default=1, ge=1, le=1000)
    """How many of the best checkpoints to keep, by `evaluate.metric`; `best` points at the best."""
    background: Switch = "auto"
    """Copy the state to host memory and write it while training goes on; `off` lets training wait
    until all is on disk. `auto` does so where the host has the memory."""


class Hang(Strict):
    """When ranks that do not move count as hung: then all are ended and start again from the last
    checkpoint. A rank that waits for another one is excused for as long as that one is."""

    after_s: Literal["auto"] | Seconds | None = "auto"
    """Seconds without a move within a step. `auto`: 60, or five times what a step takes in this run
    if that is more. `null` watches for nothing."""
    data_s: Seconds = 300.0
    """The same while a rank waits for its samples, if that is more."""
    start_s: Seconds = 3600.0
    """The same before the first step: reading data and weights, meeting the others."""
    compile_s: Seconds = 3600.0
    """The same while code is compiled, and in the first three steps."""
    evaluate_s: Seconds = 1800.0
    """The same between two micro-batches of an evaluation, and while its figures are made."""
    save_s: Seconds = 1800.0
    """The same while a checkpoint is written or the model exported."""


class Loader(Strict):
    """How samples reach the model."""

    workers: Literal["auto"] | Annotated[int, Field(ge=0)] = "auto"
    """Loader processes per rank; 0 loads in the training process."""
    prefetch: int = Field(default=2, ge=1)
    """Micro-batches each worker holds ready."""
    pin_memory: Literal["auto"] | bool = "auto"
    """Page-locked host memory for faster copies to a CUDA device; `auto` means CUDA only."""
    cache: Cache = "off"
    """`ram` keeps samples in memory once they are read and decoded, as many as fit into half of
    what is free, one copy for all ranks and loader processes; `disk` keeps them in the user's cache
    folder, for later runs too. The same bits."""


class Ddp(Strict):
    """Settings of PyTorch's DistributedDataParallel."""

    find_unused_parameters: Literal["auto"] | bool = "auto"
    """`auto` looks at one discarded backward pass and turns it on only when it is needed."""
    bucket_mb: float | None = Field(default=None, gt=0)
    """Gradient bucket size in MiB. Default: torch's own, 25 MiB with a first bucket of 1 MiB."""


class Fsdp(Strict):
    """Settings of PyTorch's FSDP2, which spreads weights, gradients and optimizer state."""

    shard_ranks: int | None = Field(default=None, ge=1)
    """How many ranks share one copy of the state; more ranks hold further copies. Default: all
    ranks of a node."""
    reshard_after_forward: bool = True
    """Let go of gathered weights between forward and backward; `false` is faster and holds the
    whole model in memory during a step."""
    offload: Literal["auto"] | bool = "auto"
    """Keep weights, gradients and optimizer state in host memory and update them there, which is
    slow. `auto` does so where nothing else fits into the GPUs and the host has the memory."""
    build: Literal["auto", "whole", "parts"] = "auto"
    """How the model gets its first weights: built `whole` by every rank in host memory, or in
    `parts`, one tensor at a time. `auto` goes by the host's memory."""


class Deepspeed(Strict):
    """Settings of DeepSpeed's ZeRO, for `strategy: deepspeed`."""

    stage: Literal[1, 2, 3] = 2
    """What each rank holds only a part of: 1 optimizer state, 2 also gradients, 3 also weights."""
    offload_optimizer: bool = False
    """Keep optimizer state and the fp32 weights in host memory, and update them there."""
    offload_parameters: bool = False
    """Keep weights that are not in use in host memory; needs stage 3."""
    config: str | dict[str, Any] | None = None
    """DeepSpeed's own JSON file. What it says of batch, optimizer, schedule and precision becomes
    keys of this job, the rest goes to DeepSpeed; the run keeps its content."""


class Logging(Strict):
    """What is written down while training."""

    every: int = Field(default=10, ge=1)
    """Log the loss every so many optimizer steps; reading it synchronises the device."""
    tensorboard: bool = True
    """Write TensorBoard event files into the run directory."""
    wandb: str | None = Field(default=None, min_length=1)
    """Send curves and pictures to this project of Weights & Biases (extra `wandb`). The key is
    wandb's own business: WANDB_API_KEY, or `wandb login`. `null`: nothing is sent."""
    wandb_entity: str | None = Field(default=None, min_length=1)
    """Team or user that owns the project; default: yours."""
    wandb_mode: Literal["online", "offline"] = "online"
    """`offline` keeps it in the run directory, for `wandb sync` later."""


class Job(Strict):
    """A training job: what to train, on how much, for how long."""

    schema_version: Literal[1] = 1
    """Version of this format."""
    recipe: str = Field(min_length=1)
    """A built-in recipe (`phalanx recipes`) or a file of your own: `my_recipe.py:MyRecipe`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The recipe's own options (`phalanx recipes show NAME`)."""
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """Name of the run directory. Default: the recipe's name and the time."""
    output: str = Field(default="runs", min_length=1)
    """Folder that receives run directories."""

    epochs: int | None = Field(default=None, ge=1, le=_MANY)
    """Train for this many passes over the data. Exclusive with `steps`."""
    steps: int | None = Field(default=None, ge=1, le=_MANY)
    """Train for this many optimizer steps. Exclusive with `epochs`."""
    stop_after: Every | None = None
    """Stop early after this much training in this session, save, and exit 75 (safe to requeue)."""

    global_batch_size: int | None = Field(default=None, ge=1, le=_MANY)
    """Samples per optimizer step over all ranks. Exclusive with `batch_per_gpu`."""
    batch_per_gpu: int | None = Field(default=None, ge=1, le=_MANY)
    """Samples per forward on each rank; times ranks and accumulation it becomes the global batch
    once, at planning, and then stays."""
    gradient_accumulation: int | None = Field(default=None, ge=1, le=_MANY)
    """Micro-batches each rank adds up per optimizer step."""
    micro_batch_size: int | None = Field(default=None, ge=1, le=_MANY)
    """Samples per forward on one rank. Default: the global batch divided by the ranks."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of sample order, per-sample randomness, dropout and initial weights."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp64"] = "auto"
    """Arithmetic; `auto` goes by the GPU's compute capability. Weights that learn stay in fp32."""
    frozen_precision: Literal["auto", "full", "compute"] = "auto"
    """How weights that do not learn are held under bf16 and fp16: `compute` holds those of linear
    layers, convolutions and (in bf16) embeddings in that precision, which takes half the memory and
    saves casts; `full` holds them in fp32. `auto` is `compute` where there are any."""
    strategy: Literal["auto", "single", "ddp", "fsdp", "deepspeed"] = "auto"
    """How ranks share the work: `ddp` holds the model on every rank, `fsdp` and `deepspeed` spread
    it."""
    determinism: Literal["auto", "fast", "resume", "exact"] = "auto"
    """`resume`: a resumed run equals the unbroken run bit for bit. `exact`: so do runs on other
    numbers of ranks. `fast`: quicker kernels."""
    sync_batchnorm: bool = False
    """Let BatchNorm take its statistics over the micro-batches that the ranks run at the same time,
    instead of each over its own. Every forward and backward then waits for the other ranks."""
    activation_checkpointing: Switch = "auto"
    """Keep only the inputs of the model's blocks and run each again in backward: much less memory,
    about a third more time, the same bits. `auto` turns it on when the prediction without it does
    not fit the GPU."""
    fast: Fast = "auto"
    """`off` trains as the recipe is written: `compile`, `channels_last`, `cuda_graph` and
    `cudnn_search` that say `auto` are then off. One that says `on` stays on."""
    compile: Switch = "auto"
    """Let torch.compile make kernels for the model: less memory and time per step, some seconds to
    a minute at the start, other last bits and other dropout masks. Repeated blocks are compiled
    once for all of them. `auto` compiles on CUDA where the time that is predicted to be saved over
    the whole job repays compiling."""
    channels_last: Switch = "auto"
    """Keep images and the weights of 2-D convolutions with their channels last, as tensor cores
    want them: convolutions turn nothing around. The same numbers in checkpoints. `auto` goes by the
    model's convolutions and the precision, on CUDA."""
    cuda_graph: Switch = "auto"
    """Record a whole optimizer step once and let CUDA repeat it: the host then starts one thing per
    step. `auto` does so on one CUDA rank whose steps are of few sizes."""
    cudnn_search: Switch = "auto"
    """Let cuDNN try its kernels for convolutions out, for each size it meets: 5 to 20 s at the
    start, and whatever memory is free meanwhile. `auto` does so in fp32 and TF32 where the job is
    long and `determinism` is fast."""
    stop_after_bad_steps: int | None = Field(default=25, ge=1)
    """Stop after so many optimizer steps in a row whose loss or gradients were not finite. Each of
    them is skipped on all ranks. In fp16 those that find the loss scale count. `null`: never."""
    max_restarts: int = Field(default=3, ge=0)
    """How often in a row the ranks are started again, after one of them was killed or hung, before
    a newer checkpoint is there: each one begins the count anew. Then the run ends with exit code
    93."""
    init_from: str | None = None
    """Start from these weights: a run, a checkpoint, a .safetensors or a .pt file. Not a resume."""

    devices: Devices = Devices()
    """Where to train."""
    optimizer: Optimizer = Optimizer()
    """The optimizer and its learning rate."""
    schedule: Schedule = Schedule()
    """How the learning rate moves."""
    ema: Ema = Ema()
    """The exponential moving average of the weights."""
    evaluate: Evaluate = Evaluate()
    """When to evaluate, and what counts as best."""
    checkpoint: Checkpoint = Checkpoint()
    """When to save, and how much to keep."""
    hang: Hang = Hang()
    """When ranks that do not move count as hung."""
    loader: Loader = Loader()
    """How samples reach the model."""
    ddp: Ddp = Ddp()
    """Settings of DistributedDataParallel."""
    fsdp: Fsdp = Fsdp()
    """Settings of FSDP2."""
    deepspeed: Deepspeed = Deepspeed()
    """Settings of DeepSpeed's ZeRO."""
    logging: Logging = Logging()
    """What is written down while training."""
