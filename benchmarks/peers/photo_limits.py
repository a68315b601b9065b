"""What ResNet-50 from a folder cannot exceed: the device's arithmetic, the cores' decoding."""

import os

import torch
from photos import KeyedPhotos
from plain import endless, tuned_loop
from torch.utils.data import DataLoader


def compute_limit(work, device, meter, *, folder):
    """The tuned, compiled loop over a batch that lies on the device already."""
    size = (work.batch, 3, work.image_size, work.image_size)
    pixels = torch.randint(256, size, dtype=torch.uint8, device=device)
    if device == "cuda":
        pixels = pixels.contiguous(memory_format=torch.channels_last)
    batch = {"pixels": pixels, "labels": torch.randint(16, size[:1], device=device)}
    tuned_loop(work, device, meter, batches=iter(lambda: batch, None))


class Decoding(torch.utils.data.Dataset):
    """The recipe's own data set with a fresh key each time."""

    def __init__(self, folder, size, is_drafted):
        self.photos = KeyedPhotos(folder, size, is_drafted=is_drafted, is_training=True)

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, index):
        return self.photos.__getitem__(index, int(torch.randint(1 << 40, ())))


def _loader(work, folder, is_drafted, **settings):
    return DataLoader(
        Decoding(folder, work.image_size, is_drafted),
        work.batch,
        shuffle=True,
        drop_last=True,
        num_workers=len(os.sched_getaffinity(0)),
        persistent_workers=True,
        **settings,
    )


def decode_limit(work, device, meter, *, folder, is_drafted=False):
    """Loader processes on every core, and nobody who computes."""
    for _ in endless(_loader(work, folder, is_drafted)):
        if meter.step():
            return


def compiled_from_folder(work, device, meter, *, folder):
    """The tuned, compiled loop from the folder, as a person would write it."""
    loader = _loader(work, folder, False, pin_memory=device == "cuda", prefetch_factor=4)
    moved = (
        {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        for batch in endless(loader)
    )
    tuned_loop(work, device, meter, batches=moved)
