"""VOC XML and COCO JSON become labels of the detection recipe; needs no Ultralytics."""

import json

import pytest
import yaml
from PIL import Image

from phalanx.recipe import UserError
from phalanx.recipes.detection.converting import convert
from phalanx.recipes.detection.labels import parse_labels
from phalanx.recipes.detection.source import label_file, read_source
from tests.cli.command import run_cli

VOC = """<annotation><filename>{name}.jpg</filename>
<size><width>100</width><height>50</height><depth>3</depth></size>
<object><name>car</name><difficult>0</difficult>
<bndbox><xmin>11</xmin><ymin>6</ymin><xmax>30</xmax><ymax>25</ymax></bndbox></object>
<object><name>bus</name><difficult>1</difficult>
<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax></bndbox></object>
<object><name>ape</name>
<bndbox><xmin>91</xmin><ymin>41</ymin><xmax>120</xmax><ymax>50</ymax></bndbox></object>
</annotation>"""


@pytest.fixture
def voc(tmp_path):
    for folder in ("images", "xml"):
        (tmp_path / folder).mkdir()
    for n in range(12):
        Image.new("RGB", (100, 50)).save(tmp_path / "images" / f"p{n}.jpg")
        (tmp_path / "xml" / f"p{n}.xml").write_text(VOC.format(name=f"p{n}"))
    return tmp_path


def rows_of(file, split):
    source, findings = read_source(file)
    assert findings == []
    classes = len(source.names)
    return {path.name: parse_labels(label_file(path), classes) for path in source.images[split]}


def test_voc(voc):
    out = voc / "data"
    done = convert("voc", voc / "xml", images=voc / "images", out=out, val_share=0.4)
    assert yaml.safe_load(done.file.read_text())["names"] == {0: "ape", 1: "car"}
    assert sum(done.images.values()) == 12 and min(done.images.values()) >= 2
    found = {**rows_of(done.file, "train"), **rows_of(done.file, "test")}
    assert set(found) == {f"p{n}.jpg" for n in range(12)}
    for rows, faults in found.values():
        assert faults == []
        # Pixels 11 to 30 of 100, counted from 1, are 0.1 to 0.3; what sticks out is cut.
        assert rows.tolist() == [
            pytest.approx([1, 0.2, 0.3, 0.2, 0.4]),
            pytest.approx([0, 0.95, 0.9, 0.1, 0.2]),
        ]
    again = convert("voc", voc / "xml", images=voc / "images", out=voc / "again", val_share=0.4)
    assert again.images == done.images


def test_what_cannot_be_read_is_left_out_and_said(voc):
    (voc / "xml" / "p3.xml").write_text("<annotation><filename>p3.jpg")
    (voc / "images" / "p4.jpg").unlink()
    done = convert("voc", voc / "xml", images=voc / "images", out=voc / "data", val_share=0.4)
    (finding,) = done.findings
    assert finding.slug == "convert-left-out"
    assert "p3.xml" in finding.why and "no image `p4.jpg`" in finding.why
    assert sum(done.images.values()) == 10


def coco(folder, count, *, first=0):
    images = [
        {"id": 7 + n, "file_name": f"q{first + n}.png", "width": 80, "height": 40}
        for n in range(count)
    ]
    annotations = [
        {"id": n, "image_id": 7 + n, "category_id": 90 if n % 2 else 3, "iscrowd": 0,
         "bbox": [8, 4, 16, 8]}
        for n in range(count)
    ]  # fmt: skip
    annotations.append(
        {"id": 99, "image_id": 7, "category_id": 3, "iscrowd": 1, "bbox": [0, 0, 9, 9]}
    )
    kinds = [{"id": 90, "name": "boat"}, {"id": 3, "name": "dog"}]
    for image in images:
        Image.new("RGB", (80, 40)).save(folder / image["file_name"])
    return {"images": images, "annotations": annotations, "categories": kinds}


def test_coco_on_the_command_line(tmp_path):
    (tmp_path / "img").mkdir()
    (tmp_path / "train.json").write_text(json.dumps(coco(tmp_path / "img", 4)))
    (tmp_path / "val.json").write_text(json.dumps(coco(tmp_path / "img", 2, first=10)))
    out = tmp_path / "data"
    given = ["--images", str(tmp_path / "img"), "--val", str(tmp_path / "val.json")]
    answer = run_cli("recipes", "convert", "coco", str(tmp_path / "train.json"), *given,
                     "--out", str(out))  # fmt: skip
    assert answer.code == 0, answer.err
    assert "4 for train, 2 for val; 6 boxes, 2 classes" in answer.out
    assert f"data={out / 'data.yaml'}" in answer.out.replace("\n", "")
    rows, faults = rows_of(out / "data.yaml", "train")["q0.png"]
    assert faults == []
    assert rows.tolist() == [pytest.approx([0, 0.2, 0.2, 0.2, 0.2])]  # ids in order: dog, boat
    again = run_cli("recipes", "convert", "coco", str(tmp_path / "train.json"), *given,
                    "--out", str(out))  # fmt: skip
    assert again.code != 0 and "folder-exists" in again.err


@pytest.mark.parametrize(
    ("kind", "content", "slug"),
    [("coco", "[1, 2]", "convert-source"), ("coco", "{", "convert-source"),
     ("voc", "", "convert-empty"), ("yolo", "", "convert-format")],
)  # fmt: skip
def test_what_is_no_source(tmp_path, kind, content, slug):
    file = tmp_path / "labels"
    file.write_text(content)
    answer = run_cli("recipes", "convert", kind, str(file), "--images", str(tmp_path), "--out",
                     str(tmp_path / "data"))  # fmt: skip
    assert answer.code != 0
    assert slug in answer.err
    assert not (tmp_path / "data").exists()


def test_nothing_is_left_of_a_conversion_that_failed(voc, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("phalanx.recipes.detection.converting._link", fail)
    with pytest.raises((OSError, UserError)):
        convert("voc", voc / "xml", images=voc / "images", out=voc / "data", val_share=0.4)
    assert sorted(p.name for p in voc.iterdir()) == ["images", "xml"]
