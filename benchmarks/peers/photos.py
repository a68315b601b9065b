"""A folder of JPEGs that decode like photographs, and data sets over it.

    python benchmarks/peers/photos.py FOLDER [--count 2048]

Pictures of 500 x 375 with structure at every scale, 50 to 100 kB each, one folder per class.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from phalanx.recipe import keys

SIZE, CLASSES, QUALITY = (500, 375), 16, 90


def write_photo(path, seed):
    """Noise at several scales, added up: about as hard to code as a photograph."""
    generator = np.random.default_rng(seed)
    picture = np.zeros((SIZE[1], SIZE[0], 3), np.float32)
    for cells, strength in ((4, 60), (16, 35), (64, 22), (160, 14), (375, 9)):
        coarse = generator.normal(scale=strength, size=(cells, cells * 4 // 3, 3))
        levels = np.clip(coarse + 128, 0, 255).astype(np.uint8)
        picture += np.asarray(Image.fromarray(levels).resize(SIZE, Image.BICUBIC), np.float32) - 128
    levels = np.clip(picture + 128, 0, 255).astype(np.uint8)
    Image.fromarray(levels).save(path, quality=QUALITY)


def write_folder(folder, count):
    """The folder with `count` pictures; what is there already stays."""
    paths = [Path(folder, f"class-{n % CLASSES:02d}", f"{n:06d}.jpg") for n in range(count)]
    for parent in {path.parent for path in paths}:
        parent.mkdir(parents=True, exist_ok=True)
    missing = [(path, seed) for seed, path in enumerate(paths) if not path.exists()]
    with ProcessPoolExecutor() as pool:
        list(pool.map(write_photo, *zip(*missing, strict=True), chunksize=16) if missing else ())
    return paths


def find_photos(folder):
    """(path, class) of every picture."""
    classes = sorted(path for path in Path(folder).iterdir() if path.is_dir())
    return [(p, n) for n, inner in enumerate(classes) for p in sorted(inner.glob("*.jpg"))]


# The few pictures stand for many: nobody's loader runs dry at the end of a short pass.
TIMES = 64


def as_bytes(image):
    """Channels first, a byte each, without a copy of the pixels."""
    return torch.from_numpy(np.array(image, np.uint8)).permute(2, 0, 1)


def random_box(width, height, draw):
    """RandomResizedCrop's box: 8 to 100 % of the area, sides at 3:4 to 4:3, by ten tries.

    `draw` gives two numbers below 1 at each try, then two for the place."""
    for _ in range(10):
        area = width * height * (0.08 + 0.92 * draw())
        ratio = np.exp(np.log(3 / 4) + draw() * np.log(16 / 9))
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(draw() * (width - w + 1)), int(draw() * (height - h + 1))
            return left, top, left + w, top + h
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def crop_photo(path, size, draw, *, is_drafted=False):
    """Read, crop at random, resize, flip half of the time."""
    with Image.open(path) as image:
        width, height = image.size
        left, top, right, bottom = random_box(width, height, draw)
        if is_drafted:
            # Decoded smaller by a power of two as long as the crop still has `size` pixels.
            factor = min((right - left) / size, (bottom - top) / size)
            image.draft("RGB", (max(1, int(width / factor)), max(1, int(height / factor))))
        shrunk = image.size[0] / width, image.size[1] / height
        box = (left * shrunk[0], top * shrunk[1], right * shrunk[0], bottom * shrunk[1])
        cropped = image.convert("RGB").resize((size, size), Image.BILINEAR, box=box)
    return cropped.transpose(Image.FLIP_LEFT_RIGHT) if draw() < 0.5 else cropped


class KeyedPhotos:
    """Photographs for a recipe: what is random comes from the sample's key."""

    def __init__(self, folder, size, *, is_drafted, is_training):
        photos = find_photos(folder)
        self.photos = photos * TIMES if is_training else photos[::16]
        self.size, self.is_drafted, self.is_training = size, is_drafted, is_training

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, index, key):  # noqa: PLE0302 - recipes get the key as well
        path, label = self.photos[index]
        draw = keys.generator(key if self.is_training else index).random
        cropped = crop_photo(path, self.size, draw, is_drafted=self.is_drafted)
        return {"pixels": as_bytes(cropped), "labels": label}


class WholePhotos(KeyedPhotos):
    """The same pictures to the bit, decoded whole before they are cropped: what `--cache` keeps.

    Without it they take some percent longer, to become an array and a picture again."""

    def load(self, index):
        with Image.open(self.photos[index][0]) as image:
            return np.asarray(image.convert("RGB"))

    def __getitem__(self, index, key):  # noqa: PLE0302 - recipes get the key as well
        draw = keys.generator(key if self.is_training else index).random
        image = Image.fromarray(self.load(index))
        box = random_box(*image.size, draw)
        cropped = image.resize((self.size, self.size), Image.BILINEAR, box=box)
        cropped = cropped.transpose(Image.FLIP_LEFT_RIGHT) if draw() < 0.5 else cropped
        return {"pixels": as_bytes(cropped), "labels": self.photos[index][1]}


class GlobalPhotos(torch.utils.data.Dataset):
    """The same from torch's own random numbers, where torchvision is not installed."""

    def __init__(self, folder, size):
        self.photos, self.size = find_photos(folder) * TIMES, size

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, index):
        path, label = self.photos[index]
        cropped = crop_photo(path, self.size, lambda: float(torch.rand(())))
        return {"pixels": as_bytes(cropped), "labels": label}


def photo_folder(folder, size):
    """torchvision's ImageFolder with its crop and flip; samples are named, as HF Trainer wants."""
    try:
        from torchvision import transforms
        from torchvision.datasets import ImageFolder
    except (ImportError, RuntimeError):  # beside a CPU build of torch it does not import
        return GlobalPhotos(folder, size)

    class Named(ImageFolder):
        def __getitem__(self, index):
            pixels, label = super().__getitem__(index)
            return {"pixels": pixels, "labels": label}

    steps = [
        transforms.RandomResizedCrop(size),
        transforms.RandomHorizontalFlip(),
        transforms.PILToTensor(),
    ]
    photos = Named(folder, transforms.Compose(steps))
    photos.samples, photos.targets = photos.samples * TIMES, photos.targets * TIMES
    return photos


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=2048)
    arguments = parser.parse_args()
    sizes = [path.stat().st_size for path in write_folder(arguments.folder, arguments.count)]
    print(f"{len(sizes)} pictures, {sum(sizes) / len(sizes) / 1000:.0f} kB each")


if __name__ == "__main__":
    main()
