"""Images, boxes and augmentation: a function of the key alone, boxes that stay on their things."""

import cv2
import numpy as np
import pytest
import torch

from phalanx.engine.data.disk_cache import DiskCache
from phalanx.recipe import Epoch
from phalanx.recipe.keys import generator
from phalanx.recipe.loading import load_recipe
from phalanx.recipes.detection.augment import (
    GREY,
    Augmenter,
    Loaded,
    _from_whole_pixels,
    _place_by_canvas,
    _place_straight,
)
from phalanx.recipes.detection.options import DetectionOptions
from phalanx.recipes.detection.shapes import NAMES, draw, make_shapes

START, END = Epoch(0, 20), Epoch(19, 20)


def open_data(shapes, split="train", **options):
    given = {"data": str(shapes), "image_size": 64, **options}
    return load_recipe("detection", given).data(split)


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_a_sample_is_the_same_in_any_company(shapes):
    data = open_data(shapes, mixup=0.5, degrees=10.0)
    ids, keys = np.arange(6), np.arange(6) * 104729 + 5
    together = data.__getitems__(ids, keys, START)
    for n in (3, 0):
        alone = data.__getitems__(ids[n : n + 1], keys[n : n + 1], START)
        assert_same({k: v[0] for k, v in alone.items()}, {k: v[n] for k, v in together.items()})
    np.random.seed(1)  # nothing global is drawn from
    assert_same(open_data(shapes, mixup=0.5, degrees=10.0).__getitems__(ids, keys, START), together)
    other = data.__getitems__(ids, keys + 1, START)
    assert not torch.equal(other["image"], together["image"])


def test_mosaic_ends_before_the_last_epochs(shapes):
    data = open_data(shapes, close_mosaic=3, scale=0.0, translate=0.0, fliplr=0.0, hsv_s=0.0)
    ids, keys = np.arange(4), np.arange(4) * 31
    seen = [data.__getitems__(ids, keys, Epoch(n, 10))["image"] for n in range(10)]
    assert all(torch.equal(image, seen[0]) for image in seen[:7])
    assert all(torch.equal(image, seen[9]) for image in seen[7:])
    assert not torch.equal(seen[6], seen[7])


def test_without_augmentation_an_image_is_as_it_is(shapes):
    still = {"hsv_h": 0.0, "hsv_s": 0.0, "hsv_v": 0.0, "scale": 0.0, "translate": 0.0}
    data = open_data(shapes, mosaic=0.0, fliplr=0.0, **still)
    batch = data.__getitems__(np.array([2]), np.array([9]), START)
    image = batch["image"][0].permute(1, 2, 0).numpy()[..., ::-1]
    assert np.array_equal(image, data.load(2))
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)


def coloured(rng, size, kinds=3):
    """An image of flat rectangles, each in the colour of its class, and its rows."""
    image = np.full((size, int(size * rng.uniform(0.6, 1.0)), 3), 0, np.uint8)
    height, width = image.shape[:2]
    rows = []
    for kind in range(kinds):
        w, h = rng.integers(8, 24, 2)
        x, y = int(rng.integers(width - w)), int(rng.integers(height - h))
        image[y : y + h, x : x + w] = 0
        image[y : y + h, x : x + w, kind] = 255
        rows.append((kind, x, y, x + w, y + h))
    return Loaded(image, np.array(rows, np.float32))


@pytest.mark.parametrize(
    "options",
    [{}, {"degrees": 20.0, "shear": 5.0}, {"perspective": 0.0005}, {"flipud": 1.0}],
    ids=["straight", "turned", "perspective", "flipped"],
)
def test_boxes_follow_what_they_are_around(options):
    rng = np.random.default_rng(0)
    images = [coloured(rng, 64, kinds=1) for _ in range(8)]
    given = DetectionOptions(hsv_h=0, hsv_s=0, hsv_v=0, **options)
    augmenter = Augmenter(given, load=images.__getitem__, count=8, size=64)
    boxes, there, outside = 0, 0, 0
    for key in range(40):
        image, rows = augmenter.make(key % 8, generator(key), is_open=True)
        blue = image[..., 2] > 127  # BGR came in, RGB goes out
        covered = np.zeros_like(blue)
        for _, left, top, right, bottom in rows:
            covered[int(top) : int(np.ceil(bottom)), int(left) : int(np.ceil(right))] = True
            inside = blue[int(top + 1) : int(bottom), int(left + 1) : int(right)]
            assert inside.size == 0 or inside.any()
            boxes += 1
        there, outside = there + blue.sum(), outside + (blue & ~covered).sum()
    assert boxes > 60
    # What no box is around was cut down to a sliver, which counts as nothing.
    assert outside < 0.05 * there


def test_placing_tiles_straight_is_warping_the_canvas():
    rng = np.random.default_rng(1)
    smooth = [
        Loaded(
            cv2.GaussianBlur(rng.integers(0, 255, (64, w, 3)).astype(np.uint8), (0, 0), 5),
            np.zeros((0, 5), np.float32),
        )
        for w in (64, 50, 64, 40)
    ]
    augmenter = Augmenter(DetectionOptions(), load=smooth.__getitem__, count=4, size=64)
    for key in range(30):
        draw_from = generator(key)
        tiles, width, height = augmenter._mosaic(0, draw_from)
        drawn, scale = augmenter._draw_matrix(draw_from, width, height)
        matrix, left, top = _from_whole_pixels(drawn)
        assert np.abs(matrix - drawn).max() <= scale / 2
        straight = _place_straight(tiles, left, top, scale, 64).astype(int)
        canvas = _place_by_canvas(tiles, matrix, width, height, 64).astype(int)
        assert straight.shape == canvas.shape
        # warpAffine's places are 32nds of a pixel, and at the rim it sees what is beside.
        assert np.abs(straight - canvas)[2:-2, 2:-2].max() <= 4


def test_grey_is_where_no_tile_is():
    tile = Loaded(np.zeros((64, 32, 3), np.uint8), np.zeros((0, 5), np.float32))
    augmenter = Augmenter(
        DetectionOptions(scale=0, translate=0, hsv_h=0, hsv_s=0, hsv_v=0, fliplr=0),
        load=lambda index: tile, count=1, size=64,
    )  # fmt: skip
    image, _ = augmenter.make(0, generator(1), is_open=False)
    assert (image[:, :15] == GREY).all()
    assert (image[:, 17:47] == 0).all()


def test_evaluated_rectangles_are_those_of_ultralytics(tmp_path):
    from ultralytics.cfg import get_cfg
    from ultralytics.data import YOLODataset

    file = make_shapes(tmp_path / "shapes", train=1, test=6, side=64)
    for index, (width, height) in enumerate([(80, 40), (64, 64), (30, 90), (100, 60), (64, 32)]):
        path = file.parent / "images" / "val" / f"{index:05d}.png"
        cv2.imwrite(str(path), cv2.resize(cv2.imread(str(path)), (width, height)))
    data = open_data(file, "test", image_size=96)
    theirs = YOLODataset(
        img_path=str(file.parent / "images" / "val"), imgsz=96, augment=False, rect=True,
        batch_size=2, stride=32, pad=0.5, hyp=get_cfg(), data={"names": dict(enumerate(NAMES))},
        task="detect",
    )  # fmt: skip
    for start in (0, 2, 4):
        ids = np.arange(start, start + 2)
        batch = data.__getitems__(ids, ids)
        for n, index in enumerate(ids):
            sample = theirs[int(index)]
            assert sample["im_file"] == str(data._labels.images[index])
            assert torch.equal(sample["img"], batch["image"][n])
            boxes = batch["boxes"][n][batch["classes"][n] >= 0]
            centre = (boxes[:, :2] + boxes[:, 2:]) / 2
            torch.testing.assert_close(sample["bboxes"][:, :2], centre, rtol=0, atol=2e-3)


def test_multi_scale_takes_a_size_from_the_first_sample(shapes):
    data = open_data(shapes, multi_scale=0.5, image_size=128)
    ids = np.arange(2)
    sizes = {data.__getitems__(ids, ids * 17 + n, START)["size"] for n in range(40)}
    assert sizes == {64, 96, 128, 160, 192}
    recipe = load_recipe("detection", {"data": str(shapes), "multi_scale": 0.5, "image_size": 64})
    batch = recipe.data("train").__getitems__(ids, ids, START)
    seen = []
    network = recipe.model()
    network.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[-1]))
    recipe.loss(network, {**batch, "size": 96}, torch.arange(2))
    assert seen == [96]


def test_images_on_disk_are_read_once_until_they_change(tmp_path, monkeypatch):
    file = make_shapes(tmp_path / "shapes", train=3, test=2, side=64)
    read = []
    imdecode = cv2.imdecode
    monkeypatch.setattr(cv2, "imdecode", lambda *given: read.append(1) or imdecode(*given))

    def batch():
        cache = DiskCache(tmp_path / "kept", limit_bytes=2**30)
        data = cache.keep(open_data(file, mosaic=0.0))
        return data.__getitems__(np.arange(3), np.arange(3) * 31, START)

    first = batch()
    assert len(read) == 3
    assert_same(first, batch())
    assert len(read) == 3
    image = tmp_path / "shapes" / "images" / "train" / "00001.png"
    cv2.imwrite(str(image), 255 - cv2.imread(str(image)))
    read.clear()
    changed = batch()
    assert len(read) == 1
    assert torch.equal(changed["image"][0], first["image"][0])
    assert not torch.equal(changed["image"][1], first["image"][1])


def test_generated_shapes_are_the_same_everywhere_and_inside_their_boxes(tmp_path):
    one = make_shapes(tmp_path / "one", train=3, test=1, side=48)
    two = make_shapes(tmp_path / "two", train=3, test=1, side=48)
    for path in sorted(one.parent.rglob("*.*")):
        assert path.read_bytes() == (two.parent / path.relative_to(one.parent)).read_bytes()
    kinds = set()
    for key in range(60):
        image, rows = draw(generator(key), 96)
        assert image.shape == (96, 96, 3)
        for kind, x, y, w, h in rows:
            kinds.add(kind)
            assert x - w / 2 >= 0 and x + w / 2 <= 1 and y - h / 2 >= 0 and y + h / 2 <= 1
            assert 0.04 < w < 0.5
    assert kinds == {0, 1, 2, 3}
