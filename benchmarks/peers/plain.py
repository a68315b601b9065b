"""Loops as a person writes them: eager, compiled and tuned, and the whole step as one CUDA graph.

The last two are the limits: what the device gives when nothing stands in its way.
"""

import math

import torch
from torch.utils.data import DataLoader

TOTAL_STEPS, WARMUP = 100_000, 1000


def lr_factor(step):
    """Warm-up, then half a cosine."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (TOTAL_STEPS - WARMUP)))


def endless(loader):
    while True:
        yield from loader


def make_loader(work, device, folder):
    """As every guide writes it."""
    return DataLoader(
        work.data(folder),
        work.batch,
        shuffle=True,
        drop_last=True,
        num_workers=work.workers,
        pin_memory=device == "cuda",
    )


def autocast(device, **settings):
    """bf16 on a GPU; on the CPU these are only tried, and bf16 ends the process on some CPUs."""
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda", **settings)


def plain_loop(work, device, meter, *, folder=None):
    """A loader with processes, autocast, AdamW, clipping, a schedule. Nothing tuned."""
    model = work.model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)
    loader = make_loader(work, device, folder)
    for batch in endless(loader):
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        with autocast(device):
            loss = model(**moved)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), work.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if meter.step():
            return


def tune():
    """What every guide to speed says, for the process."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = True


def tuned_model(work, device, *, compile, mode=None):
    model = work.model().to(device)
    if work.rows is None:
        model = model.to(memory_format=torch.channels_last)
    return torch.compile(model, mode=mode, dynamic=False) if compile else model


def tuned_loop(work, device, meter, *, compile=True, mode=None, batches=None):
    """The whole model compiled with its loss, fused AdamW, TF32, batches copied ahead of time."""
    tune()
    model = tuned_model(work, device, compile=compile, mode=mode)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=work.lr, fused=True)
    batches = batches or batched_feed(work.tensors(), work.batch, device, at_once=16)
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = work.lr * lr_factor(step)
        if mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        with autocast(device):
            loss = model(**batch)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, work.clip, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if meter.step():
            return


def graph_loop(work, device, meter):
    """Forward, backward, clipping and AdamW, compiled, as one graph; 64 batches come at once."""
    tune()
    model = tuned_model(work, device, compile=True)
    parameters = list(model.parameters())
    rate = torch.tensor(work.lr, device=device)
    optimizer = torch.optim.AdamW(parameters, lr=rate, fused=True, capturable=device == "cuda")
    feed = batched_feed(work.tensors(), work.batch, device, at_once=64)
    inputs = {name: tensor.clone() for name, tensor in next(feed).items()}

    def step():
        with autocast(device, cache_enabled=False):
            loss = model(**inputs)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, work.clip, foreach=True)
        optimizer.step()

    replay = captured(step, optimizer, device)
    rates = torch.tensor([work.lr * lr_factor(n) for n in range(TOTAL_STEPS)], device=device)
    for number, batch in enumerate(feed):
        for name, tensor in batch.items():
            inputs[name].copy_(tensor)
        rate.copy_(rates[number % TOTAL_STEPS])
        replay()
        if meter.step():
            return


def captured(step, optimizer, device):
    """A function that runs the step as a graph; on a CPU the step itself."""
    if device != "cuda":

        def run():
            optimizer.zero_grad(set_to_none=True)
            step()

        return run
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
            optimizer.zero_grad(set_to_none=True)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        step()
    return graph.replay


def batched_feed(tensors, batch, device, *, at_once):
    """Batches in a fresh order each time round; `at_once` of them are gathered into pinned memory
    and copied together, on a stream of their own, while those before are computed."""
    size = len(next(iter(tensors.values())))
    rows = min(at_once, size // batch) * batch
    ring = [_Slot(tensors, rows, device) for _ in range(3)]
    filled = _fill_in_turns(ring, size, rows)
    ahead = next(filled)
    while True:
        slot, ahead = ahead, next(filled)
        slot.receive()
        for start in range(0, rows, batch):
            yield {name: t[start : start + batch] for name, t in slot.on_device.items()}
        slot.release()


def _fill_in_turns(ring, size, rows):
    number = 0
    while True:
        order = torch.randperm(size)
        for start in range(0, size - rows + 1, rows):
            slot = ring[number % len(ring)]
            slot.fill(order[start : start + rows])
            number += 1
            yield slot


class _Slot:
    """A chunk of rows on its way: pinned memory, its copy, and who may overwrite either."""

    def __init__(self, tensors, rows, device):
        self._tensors, self._is_cuda = tensors, device == "cuda"
        self._host = {
            name: torch.empty((rows, *t.shape[1:]), dtype=t.dtype, pin_memory=self._is_cuda)
            for name, t in tensors.items()
        }
        self.on_device = self._host
        if self._is_cuda:
            self.on_device = {name: t.to(device) for name, t in self._host.items()}
            self._stream = torch.cuda.Stream()
            self._copied, self._used = torch.cuda.Event(), torch.cuda.Event()

    def fill(self, ids):
        if self._is_cuda:
            self._copied.synchronize()
        for name, tensor in self._tensors.items():
            torch.index_select(tensor, 0, ids, out=self._host[name])
        if self._is_cuda:
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(self._used)
                for name, tensor in self._host.items():
                    self.on_device[name].copy_(tensor, non_blocking=True)
                self._copied.record()

    def receive(self):
        if self._is_cuda:
            torch.cuda.current_stream().wait_event(self._copied)

    def release(self):
        if self._is_cuda:
            self._used.record()
