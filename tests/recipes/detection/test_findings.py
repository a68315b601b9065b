"""What is wrong with data and models is said before anything starts, all of it at once."""

import json
import os
import shutil

import numpy as np
import pytest
import torch

from phalanx.recipe import UserError
from phalanx.recipe.loading import load_recipe
from phalanx.recipes.detection.labels import parse_labels
from phalanx.recipes.detection.source import label_file, read_source


@pytest.fixture
def data(shapes, tmp_path):
    """A copy to break."""
    shutil.copytree(shapes.parent, tmp_path / "data")
    return tmp_path / "data"


def check(file, **options):
    recipe = load_recipe("detection", {"data": str(file), "image_size": 64, **options})
    return recipe.check()


def slugs(findings, severity="error"):
    return [finding.slug for finding in findings if finding.severity == severity]


def test_good_data_has_nothing_to_say(data):
    assert check(data / "data.yaml") == []


@pytest.mark.parametrize(
    ("content", "slug", "says"),
    [
        (None, "detection-data", "is not there"),
        ("- a\n- b\n", "detection-data", "holds list"),
        ("train: [unclosed\n", "detection-data", "is not YAML"),
        ("!!python/object/apply:os.system ['true']\n", "detection-data", "is not YAML"),
        ("val: images/val\nnames: [a]\n", "detection-data", "has no `train`"),
        ("train: images/train\nval: images/val\n", "detection-classes", "not a list"),
        ("train: no/such\nval: images/val\nnames: [a]\n", "detection-data", "no/such"),
        ("train: labels\nval: images/val\nnames: [a]\n", "detection-empty", "no image for `train`"),
        (
            "train: images/train\nval: images/val\nnames: {0: a, 2: b}\n",
            "detection-classes",
            "0, 2",
        ),
        (
            "train: images/train\nval: images/val\nnc: 3\nnames: [a, b]\n",
            "detection-classes",
            "nc: 3",
        ),
    ],
    ids=lambda value: None if value is None or "\n" in value else value,
)
def test_a_wrong_data_yaml(data, content, slug, says):
    file = data / "data.yaml"
    file.unlink() if content is None else file.write_text(content)
    findings = check(file)
    assert slug in slugs(findings)
    assert any(says in f"{f.what} {f.why}" for f in findings)
    assert all(f.fix for f in findings)


def test_every_kind_of_wrong_label_has_its_place(data):
    label = data / "labels" / "train" / "00000.txt"
    label.write_text(
        "0 0.5 0.5 0.2 0.2\n"  # right
        "0 0.5 0.5 0.2 0.2\n"  # twice
        "9 0.5 0.5 0.2 0.2\n"  # no such class
        "1 1.5 0.5 0.2 0.2\n"  # outside
        "1 0.5 0.5 0.2\n"  # too few
        "1 half 0.5 0.2 0.2\n"  # a word
        "1 0.5 0.5 -0.2 0.2\n"
        "1 nan 0.5 0.2 0.2\n"
        "0.5 0.5 0.5 0.2 0.2\n"
    )
    (data / "labels" / "train" / "00001.txt").unlink()
    (data / "labels" / "train" / "00002.txt").write_text("\n")
    findings = check(data / "data.yaml")
    said = {f.slug: f for f in findings}
    assert sorted(slugs(findings)) == ["detection-classes", *["detection-labels"] * 3]
    assert sorted(slugs(findings, "warning")) == ["detection-background", "detection-labels"]
    assert "2 labels name a class" in said["detection-classes"].what
    text = " ".join(f"{f.what} {f.why} {f.fix}" for f in findings)
    for part in (f"{label}:3", "class 9, there are 0 to 3", f"{label}:4", f"{label}:5",
                 "4 numbers", f"{label}:6", f"{label}:2", "1 label files are missing"):  # fmt: skip
        assert part in text, part
    rows, _ = parse_labels(label, 4)
    assert rows.tolist() == [pytest.approx([0, 0.5, 0.5, 0.2, 0.2])]


def test_damaged_images_are_named(data):
    images = sorted((data / "images" / "train").iterdir())
    images[0].write_bytes(images[0].read_bytes()[:200])
    images[1].write_bytes(b"")
    jpeg = data / "images" / "train" / "cut.jpg"
    import cv2

    content = cv2.imencode(".jpg", np.zeros((64, 64, 3), np.uint8))[1].tobytes()
    jpeg.write_bytes(content[:-40])
    (data / "labels" / "train" / "cut.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    (finding,) = check(data / "data.yaml")
    assert finding.slug == "detection-images"
    assert "3 of 25 images in train" in finding.what
    for path in (images[0], images[1], jpeg):
        assert str(path) in finding.what


def test_no_labels_at_all_is_an_error(data):
    shutil.rmtree(data / "labels" / "val")
    (finding,) = check(data / "data.yaml")
    assert finding.slug == "detection-labels"
    assert "8 label files are missing" in finding.what
    assert "phalanx recipes convert" in finding.fix


def test_what_was_found_is_remembered_until_a_file_changes(data, monkeypatch):
    check(data / "data.yaml")
    monkeypatch.setattr("phalanx.recipes.detection.labels.scan", None)
    assert check(data / "data.yaml") == []
    label = data / "labels" / "train" / "00003.txt"
    label.write_text("7 0.5 0.5 0.1 0.1\n")
    with pytest.raises(TypeError, match="NoneType"):
        check(data / "data.yaml")


def test_lists_folders_and_several_of_them(data):
    names = sorted(p.name for p in (data / "images" / "train").iterdir())
    (data / "first.txt").write_text("\n".join(f"./images/train/{n}" for n in names[:5]) + "\n")
    about = {"train": ["first.txt", f"images/train/{names[7]}", "images/val"], "val": "images/val",
             "names": {0: "a", 1: "b", 2: "c", 3: "d"}}  # fmt: skip
    (data / "data.yaml").write_text(json.dumps(about))
    source, findings = read_source(data / "data.yaml")
    assert findings == []
    assert len(source.images["train"]) == 5 + 1 + 8
    image = data / "images" / "train" / names[0]
    assert label_file(image) == data / "labels" / "train" / f"{image.stem}.txt"


def test_outlines_become_boxes(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("2 0.1 0.2 0.5 0.2 0.5 0.6 0.1 0.6\n")
    rows, faults = parse_labels(file, 3)
    assert faults == []
    assert rows.tolist() == [pytest.approx([2, 0.3, 0.4, 0.4, 0.4])]


def test_a_size_that_does_not_divide(data):
    (finding,) = check(data / "data.yaml", image_size=100)
    assert finding.slug == "detection-size"
    assert "image_size=96" in finding.fix


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("yolo99z", "there is no model"),
        ("no/such.yaml", "the file is not there"),
        ("yolo11n.pt", "nothing is downloaded"),
        ("yolo26n", "heads with one branch"),
    ],
)
def test_models_that_are_not_there(data, model, says):
    recipe = load_recipe("detection", {"data": str(data / "data.yaml"), "model": model})
    with pytest.raises(UserError) as caught:
        recipe.model()
    (finding,) = caught.value.findings
    assert finding.slug == "detection-model"
    assert says in f"{finding.what} {finding.why}"


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("where", ["model", "train_args"])
def test_code_in_a_pt_is_not_run(data, tmp_path, where):
    file, proof = tmp_path / "evil.pt", tmp_path / "was-run"
    torch.save({"model": None, "train_args": {}, where: Malicious(proof)}, file)
    recipe = load_recipe("detection", {"data": str(data / "data.yaml"), "model": str(file)})
    for ask in (recipe.model, recipe.weights, recipe.check_weights):
        with pytest.raises(UserError) as caught:
            ask()
        assert caught.value.findings[0].slug == "detection-weights-unsafe"
    assert not proof.exists()
    torch.load(file, weights_only=False)  # it would have been
    assert proof.exists()


def test_a_damaged_pt_is_said(data, tmp_path):
    file = tmp_path / "damaged.pt"
    file.write_bytes(b"PK\x03\x04 no archive")
    recipe = load_recipe("detection", {"data": str(data / "data.yaml"), "model": str(file)})
    with pytest.raises(UserError) as caught:
        recipe.model()
    assert caught.value.findings[0].slug == "detection-weights-unsafe"
