"""VOC XML and COCO JSON become labels of the detection recipe; needs no Ultralytics."""

import csv
import errno
import json
import os
from pathlib import Path

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

    monkeypatch.setattr("phalanx.recipes.detection.converting.link_or_copy", fail)
    with pytest.raises((OSError, UserError)):
        convert("voc", voc / "xml", images=voc / "images", out=voc / "data", val_share=0.4)
    assert sorted(p.name for p in voc.iterdir()) == ["images", "xml"]


def sequences(folder, names):
    """COCO's JSON of small images, each of its own colour, and the bytes that lie there."""
    images = []
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (80, 40), (number + 1, 0, 0)).save(path, "PNG")
        images.append({"id": number, "file_name": name, "width": 80, "height": 40})
    boxes = [
        {"id": n, "image_id": n, "category_id": 1, "bbox": [0, 0, 8 * (n + 1), 4]}
        for n in range(len(names))
    ]
    return {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "dog"}]}


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def write_coco(tmp_path, content):
    file = tmp_path / "train.json"
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize(
    "names",
    [
        ["seq1/0001.png", "seq2/0001.png"],
        ["0001.png", "0001.PNG", "0001.jpg"],
        ["a/b.png", "a-b.png", "c/b.png", "a/b/b.png"],
        ["A.png", "a.png", "x/A.png", "x-a.png"],
        ["images/1.png", "other/images/1.png"],
        [f"{'d' * 120}/{'e' * 120}/1.png", f"{'f' * 120}/{'e' * 120}/1.png"],
    ],
)
def test_images_of_one_name_stay_apart_and_originals_as_they_are(tmp_path, names):
    images = tmp_path / "img"
    content = sequences(images, [*names, "val.png"])
    before = contents(images)
    held = {**content, "images": [content["images"].pop()]}
    (tmp_path / "val.json").write_text(json.dumps(held))
    done = convert(
        "coco",
        write_coco(tmp_path, content),
        images=images,
        out=tmp_path / "data",
        val=tmp_path / "val.json",
    )
    assert contents(images) == before
    assert done.images == {"train": len(names), "val": 1}
    made = {}
    source, _ = read_source(done.file)
    assert len({str(p).lower() for p in source.images["train"]}) == len(names)
    for path in source.images["train"]:
        (row,), faults = parse_labels(label_file(path), 1)
        assert faults == []
        made[path.read_bytes()] = round(row[3] * 10)
    # Each image has the labels that were its own.
    assert made == {before[name]: number + 1 for number, name in enumerate(names)}
    (finding,) = done.findings
    assert finding.slug == "convert-renamed"
    renamed = (tmp_path / "data" / "renamed.csv").read_text()
    written = [p.name for p in source.images["train"]]
    for row in list(csv.reader(renamed.splitlines()))[1:]:
        assert (images / row[0]).is_file()
        assert Path(row[1]).name in written
        assert (tmp_path / "data" / row[1]).read_bytes() == before[row[0]]


def test_the_report_names_what_got_another_name(tmp_path):
    names = [f"s{n}/0001.png" for n in range(40)]
    file = write_coco(tmp_path, sequences(tmp_path / "img", names))
    answer = run_cli("recipes", "convert", "coco", str(file), "--images", str(tmp_path / "img"),
                     "--val", str(file), "--out", str(tmp_path / "data"))  # fmt: skip
    assert answer.code == 0, answer.err
    said = " ".join((answer.out + answer.err).split())
    assert "convert-renamed" in said
    assert "s0/0001.png" in said and "s0-0001.png" in said
    assert len(said) < 4000
    assert len((tmp_path / "data" / "renamed.csv").read_text().splitlines()) == 81


OUTSIDE = [
    "{tmp}/victim.png",
    "../victim.png",
    "in/../../victim.png",
    "link/victim.png",
    "link.png",
    "in\\victim.png",
    "..\\victim.png",
    "in/vic\0tim.png",
    "",
    ".",
    "/",
]


def outside(tmp_path):
    """A file of the user's beside the images, and links that lead to it."""
    victim = tmp_path / "victim.png"
    Image.new("RGB", (80, 40), (9, 9, 9)).save(victim)
    (tmp_path / "img" / "in").mkdir(parents=True, exist_ok=True)
    (tmp_path / "img" / "link").symlink_to(tmp_path)
    (tmp_path / "img" / "link.png").symlink_to(victim)
    return victim


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_that_leaves_the_images_is_refused(tmp_path, name):
    name = name.format(tmp=tmp_path)
    victim = outside(tmp_path)
    content = sequences(tmp_path / "img", ["a.png", "b.png"])
    content["images"][0]["file_name"] = name
    file = write_coco(tmp_path, content)
    before = contents(tmp_path)
    with pytest.raises(UserError) as caught:
        convert("coco", file, images=tmp_path / "img", out=tmp_path / "new" / "data", val=file)
    (finding,) = caught.value.findings
    assert finding.slug == "convert-outside"
    assert repr(name)[1:-1] in finding.why
    assert contents(tmp_path) == before
    assert victim.stat().st_nlink == 1
    assert not (tmp_path / "new").exists()


def test_all_names_that_leave_are_told_at_once_and_few_of_very_many(tmp_path):
    outside(tmp_path)
    content = sequences(tmp_path / "img", ["a.png", "b.png"])
    content["images"].append({"id": 99, "file_name": "../" + "x" * 100_000})
    content["images"] += [
        {"id": 100 + n, "file_name": f"../x{n}.png", "width": 8, "height": 8} for n in range(5000)
    ]
    file = write_coco(tmp_path, content)
    answer = run_cli("recipes", "convert", "coco", str(file), "--images", str(tmp_path / "img"),
                     "--out", str(tmp_path / "data"))  # fmt: skip
    assert answer.code == 2
    said = " ".join(answer.err.split())
    assert "convert-outside" in said and "5,001" in said and "../x0.png" in said
    assert len(said) < 3000
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", [n for n in OUTSIDE if n.strip("./") and "\0" not in n])
def test_a_voc_file_that_names_an_image_elsewhere_is_refused(voc, name):
    name = name.format(tmp=voc)
    (voc / "img").symlink_to("images")
    outside(voc)
    text = VOC.format(name="p1").replace("p1.jpg", name)
    (voc / "xml" / "p1.xml").write_text(text)
    before = contents(voc)
    with pytest.raises(UserError) as caught:
        convert("voc", voc / "xml", images=voc / "images", out=voc / "data", val_share=0.4)
    (finding,) = caught.value.findings
    assert finding.slug == "convert-outside"
    assert "p1.xml" in finding.why and repr(name)[1:-1] in finding.why
    assert contents(voc) == before


def test_voc_files_of_one_name_in_two_folders(tmp_path):
    for folder, colour in (("s1", 1), ("s2", 2)):
        for kind in ("images", "xml"):
            (tmp_path / kind / folder).mkdir(parents=True)
        for n in range(12):
            Image.new("RGB", (100, 50), (colour, n, 0)).save(
                tmp_path / "images" / folder / f"p{n}.png"
            )
            text = VOC.format(name=f"p{n}").replace(".jpg", ".png").replace("car", folder)
            (tmp_path / "xml" / folder / f"p{n}.xml").write_text(text)
    before = contents(tmp_path / "images")
    done = convert(
        "voc", tmp_path / "xml", images=tmp_path / "images", out=tmp_path / "data", val_share=0.4
    )
    assert contents(tmp_path / "images") == before
    assert done.classes == ["ape", "s1", "s2"] and sum(done.images.values()) == 24
    found = {**rows_of(done.file, "train"), **rows_of(done.file, "test")}
    assert len(found) == 24
    for path in (tmp_path / "data" / "images").rglob("*.png"):
        rows, _ = found[path.name]
        with Image.open(path) as image:
            colour = image.getpixel((0, 0))[0]
        assert done.classes[int(rows[0][0])] == f"s{colour}"


def test_a_folder_of_images_may_be_a_link_and_have_links_inside(tmp_path):
    names = ["a.png", "b.png"]
    content = sequences(tmp_path / "disk", names)
    (tmp_path / "disk" / "same").symlink_to(".")
    (tmp_path / "img").symlink_to("disk")
    content["images"][0]["file_name"] = "same/a.png"
    file = write_coco(tmp_path, content)
    done = convert("coco", file, images=tmp_path / "img", out=tmp_path / "data", val=file)
    assert done.images == {"train": 2, "val": 2} and done.findings == []


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP])
def test_where_no_link_is_possible_images_are_copied(voc, monkeypatch, number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    done = convert("voc", voc / "xml", images=voc / "images", out=voc / "data", val_share=0.4)
    assert sum(done.images.values()) == 12
    for path in (voc / "data" / "images").rglob("*.jpg"):
        original = voc / "images" / path.name
        assert path.read_bytes() == original.read_bytes()
        assert path.stat().st_ino != original.stat().st_ino


@pytest.mark.parametrize("number", [errno.EEXIST, errno.ENOSPC, errno.EIO, errno.EACCES])
def test_no_other_error_becomes_a_copy(voc, monkeypatch, number):
    before = contents(voc)

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises((OSError, UserError)):
        convert("voc", voc / "xml", images=voc / "images", out=voc / "data", val_share=0.4)
    assert contents(voc) == before
    assert sorted(p.name for p in voc.iterdir()) == ["images", "xml"]


def test_what_appears_at_the_place_meanwhile_is_left_alone(voc, monkeypatch):
    from phalanx.recipes.detection import converting

    write = converting._write

    def write_slowly(folder, split, *more):
        (voc / "data").mkdir(exist_ok=True)
        (voc / "data" / "mine").write_text("mine")
        return write(folder, split, *more)

    monkeypatch.setattr(converting, "_write", write_slowly)
    with pytest.raises(UserError, match="folder-exists"):
        convert("voc", voc / "xml", images=voc / "images", out=voc / "data", val_share=0.4)
    assert contents(voc / "data") == {"mine": b"mine"}
    assert sorted(p.name for p in voc.iterdir()) == ["data", "images", "xml"]


def test_a_link_that_leads_nowhere_is_not_replaced(voc):
    (voc / "data").symlink_to("gone")
    with pytest.raises(UserError, match="folder-exists"):
        convert("voc", voc / "xml", images=voc / "images", out=voc / "data", val_share=0.4)
    assert (voc / "data").is_symlink()


def test_entries_that_are_no_images_or_boxes_are_left_out_and_said(tmp_path):
    content = sequences(tmp_path / "img", ["a.png", "b.png", "c.png"])
    content["images"] += [7, {"file_name": "c.png"}, {"id": [1], "file_name": "c.png"}]
    content["images"].append({"id": 0, "file_name": "c.png"})  # an id that a.png has
    (tmp_path / "img" / "torn.png").write_bytes(b"\x89PNG")
    content["images"].append({"id": 50, "file_name": "torn.png"})
    content["annotations"] += [
        3,
        {"id": 8, "image_id": [0], "category_id": 1, "bbox": [0, 0, 1, 1]},
        {"id": 9, "image_id": 1, "category_id": 1, "bbox": ["x", 0, 1, 1]},
    ]
    file = write_coco(tmp_path, content)
    done = convert("coco", file, images=tmp_path / "img", out=tmp_path / "data", val=file)
    assert done.images == {"train": 3, "val": 3} and done.boxes == 6
    (finding,) = done.findings
    assert finding.slug == "convert-left-out" and "16 " in finding.what


def test_two_images_that_mean_one_file_are_not_mixed(tmp_path):
    content = sequences(tmp_path / "img", ["a.png", "b.png"])
    for number, folder in enumerate(("s1", "s2")):
        image = {"id": 10 + number, "file_name": f"{folder}/a.png", "width": 80, "height": 40}
        content["images"].append(image)
    file = write_coco(tmp_path, content)
    done = convert("coco", file, images=tmp_path / "img", out=tmp_path / "data", val=file)
    assert done.images == {"train": 2, "val": 2}
    (finding,) = done.findings
    assert finding.slug == "convert-left-out" and "s1/a.png" in finding.why


def test_names_that_are_no_text_and_stores_of_files_without_endings(tmp_path):
    odd = os.fsdecode(b"\x80.png")
    names = [f"a/{odd}", f"b/{odd}", "c.png"]
    content = sequences(tmp_path / "img", names)
    (tmp_path / "img" / "store").mkdir()
    (tmp_path / "img" / "c.png").rename(tmp_path / "img" / "store" / "0a1b")
    (tmp_path / "img" / "c.png").symlink_to("store/0a1b")
    file = write_coco(tmp_path, content)
    done = convert("coco", file, images=tmp_path / "img", out=tmp_path / "data", val=file)
    assert sorted(p.name for p in read_source(done.file)[0].images["train"]) == [
        "a-?.png",
        "b-?.png",
        "c.png",
    ]
    assert len((tmp_path / "data" / "renamed.csv").read_bytes().splitlines()) == 5
