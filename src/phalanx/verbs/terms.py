"""Words of the trade for people who are new to them: three sentences each."""

from __future__ import annotations

import re

TERMS: dict[str, str] = {
    "accumulation": (
        "Gradients of several micro-batches are added up before the weights change once. A "
        "global batch that does not fit into memory at once is trained that way, with the same "
        "result. `gradient_accumulation` says how many; the plan prints global = micro x "
        "accumulation x ranks."
    ),
    "activation checkpointing": (
        "A forward pass keeps intermediate results that the backward pass needs. With "
        "checkpointing only those at the borders of blocks are kept, and the rest is computed "
        "again. That takes much less memory and about a third more time."
    ),
    "bf16": (
        "A number of 16 bits with the range of fp32 and fewer digits. Matrix products run "
        "several times as fast in it, and its range needs no loss scale. GPUs from Ampere on "
        "(A100, RTX 3090) have it."
    ),
    "checkpoint": (
        "A folder with all that a run needs to go on: weights, optimizer, position in the data. "
        "It is written beside training and published whole or not at all. `phalanx train "
        "--resume` goes on from the newest good one."
    ),
    "compile": (
        "torch.compile turns the model into kernels that do several operations at once. The "
        "first start takes some seconds to a minute longer, every step is quicker. Phalanx does "
        "so where the whole job gains, and compares with the model as it is written."
    ),
    "cuda graph": (
        "A step of a small model is hundreds of tiny kernels, and starting each takes the host "
        "longer than the GPU takes to run it. A CUDA graph records a whole step once and "
        "repeats it with one start. That needs steps of the same size."
    ),
    "ddp": (
        "Every GPU holds the whole model and works on its own share of the batch. After each "
        "backward pass the gradients are averaged over all of them, so that all models stay "
        "equal. It is the way for models that fit into one GPU."
    ),
    "determinism": (
        "Whether a run gives the same bits when it is run again. `resume` makes a resumed run "
        "equal the unbroken one, `exact` also runs on other numbers of GPUs. `fast` gives that "
        "up for quicker kernels."
    ),
    "ema": (
        "A second copy of the weights that follows them slowly: an exponential moving average. "
        "It often generalises better than the weights of the last step. `ema.decay=0.999` keeps "
        "and evaluates one."
    ),
    "epoch": (
        "One pass over all training samples. Its last optimizer step may hold fewer samples "
        "than the others. A job states its length in `epochs` or in `steps`."
    ),
    "fp16": (
        "A number of 16 bits with a small range, for GPUs without bf16. Small gradients vanish "
        "in it, so that the loss is multiplied by a scale before the backward pass. A step "
        "whose gradients overflow is skipped, and the scale is lowered."
    ),
    "fsdp": (
        "Each GPU holds only a part of weights, gradients and optimizer state. The weights of a "
        "block are gathered just before they are used, and let go afterwards. It trains models "
        "that do not fit into one GPU, for more traffic between them."
    ),
    "global batch": (
        "The samples that one change of the weights is computed from, over all GPUs. It decides "
        "what is learned, so that it stays the same on one GPU and on many. `global_batch_size` "
        "says it."
    ),
    "gloo": (
        "How CPU processes exchange data, over shared memory and the network. It is slower than "
        "NCCL and runs everywhere. Phalanx uses it for CPU ranks and for messages between "
        "ranks."
    ),
    "gradient clipping": (
        "Gradients whose norm is above a limit are made shorter. One bad batch then cannot "
        "throw the weights far off. `optimizer.clip_norm=1.0` is usual for transformers."
    ),
    "linear scaling": (
        "A batch that is k times as large takes a learning rate k times as large. It holds up "
        "to a point for SGD, with a warm-up; AdamW often wants the square root. "
        "`optimizer.lr_rule` says which, and the plan shows the arithmetic."
    ),
    "mfu": (
        "Model FLOPs utilisation: the arithmetic that the model needs, over what the GPU could "
        "do in that time. 40 to 60 % is good for large transformers. Small models stay far "
        "below, because the GPU waits for its host or its memory."
    ),
    "micro batch": (
        "The samples of one forward pass on one GPU. It is as large as memory allows and "
        "changes speed, not what is learned. Several of them make the global batch."
    ),
    "mixed precision": (
        "Matrix products run in bf16 or fp16, while weights and their updates stay in fp32. "
        "Training is two to three times as fast and learns the same. `precision=fp32` turns it "
        "off."
    ),
    "nccl": (
        "NVIDIA's library for exchanges between GPUs. It finds the quickest way, NVLink or PCIe "
        "or the network. When it hangs or fails, `phalanx doctor` says where each rank was."
    ),
    "node": (
        "One computer with its GPUs. Several of them train together when they reach each other "
        "over the network and share a folder. `--nodes`, `phalanx slurm` and `phalanx remote` "
        "start them."
    ),
    "offload": (
        "State that does not fit into the GPU is kept in the host's memory and fetched when it "
        "is needed. Training then waits for the bus, and is often several times slower. It is "
        "the last way to train a model that is too large."
    ),
    "optimizer step": (
        "One change of the weights, after a whole global batch. Schedules, logs and checkpoints "
        "count them. They do not depend on the number of GPUs."
    ),
    "pinned memory": (
        "Host memory that is never moved to disk, so that the GPU can copy from it by itself. "
        "Copies are then quicker and run beside computing. Phalanx uses it on CUDA."
    ),
    "precision": (
        "The kind of number that is computed with: fp32, tf32, bf16, fp16. Fewer bits are "
        "faster and take less memory. `auto` takes bf16 where the GPU has it."
    ),
    "preemption": (
        "A cluster takes a job's GPUs away for a more urgent one. Phalanx saves when the signal "
        "comes, ends with exit code 75, and Slurm starts it again. It goes on from there."
    ),
    "rank": (
        "One process of a training run, usually with one GPU of its own. Ranks are numbered "
        "from 0 over all nodes; rank 0 writes logs and checkpoints. Each has its own log under "
        "`logs/`."
    ),
    "rendezvous": (
        "How ranks find each other at the start: all of them know one address. On one node that "
        "is found by itself. On several, `--rendezvous HOST:PORT` names it, or Slurm does."
    ),
    "straggler": (
        "A rank that is slower than the others, who wait for it in every step. One hot or "
        "shared GPU slows down all of them. Phalanx names it with its factor and what it spends "
        "its time on."
    ),
    "strategy": (
        "How ranks share the work: `single`, `ddp`, `fsdp` or `deepspeed`. It follows from "
        "whether the model fits into one GPU. `phalanx plan` says which, and why."
    ),
    "sync batchnorm": (
        "BatchNorm takes its statistics over the samples that it sees at once. With few samples "
        "on each GPU they are noisy; `sync_batchnorm` takes them over all GPUs. Every forward "
        "pass then waits for the others."
    ),
    "tf32": (
        "fp32 numbers that tensor cores multiply with fewer digits. It is several times as fast "
        "as fp32 and close enough for training. GPUs from Ampere on have it."
    ),
    "warm-up": (
        "The learning rate rises from zero over the first steps. Large rates at random weights "
        "would throw them far off. `schedule.warmup` says how long: `500 steps` or `5%`."
    ),
    "world size": (
        "How many ranks train together. It changes the speed and, here, not what is learned: "
        "the global batch stays. A run may go on with another one."
    ),
    "zero": (
        "DeepSpeed's way to spread state over GPUs, in three stages: optimizer state, "
        "gradients, weights. Stage 3 does what FSDP does. `strategy: deepspeed` uses it, with "
        "your JSON if you have one."
    ),
}
"""Each is three sentences: what it is, what it does for you, what to do with it."""

_ALSO = {
    "gradient accumulation": "accumulation",
    "amp": "mixed precision",
    "autocast": "mixed precision",
    "batch": "global batch",
    "batch size": "global batch",
    "gradient checkpointing": "activation checkpointing",
    "lr scaling": "linear scaling",
    "torch.compile": "compile",
    "deepspeed": "zero",
    "zero-3": "zero",
    "data parallel": "ddp",
    "distributeddataparallel": "ddp",
    "fully sharded": "fsdp",
    "fsdp2": "fsdp",
    "warmup": "warm-up",
    "step": "optimizer step",
    "half precision": "fp16",
    "sharding": "fsdp",
    "grad clip": "gradient clipping",
    "syncbn": "sync batchnorm",
    "micro-batch": "micro batch",
}


def find_term(words: str) -> tuple[str, str] | None:
    """The term that is meant and what it is; None when it is not known."""
    said = re.sub(r"[\s_-]+", " ", words.strip().lower())
    known = {re.sub(r"[\s_-]+", " ", name): name for name in TERMS}
    also = {re.sub(r"[\s_-]+", " ", name): term for name, term in _ALSO.items()}
    name = known.get(said) or also.get(said)
    return (name, TERMS[name]) if name is not None else None
