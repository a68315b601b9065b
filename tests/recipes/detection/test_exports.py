"""What was trained, in other hands: Ultralytics' .pt, ONNX, TorchScript, safetensors; each finds
what the model found, and says what it is."""

import json
import shutil
from zipfile import ZipFile

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import yaml
from safetensors.torch import load_file

from phalanx.errors import UserError
from phalanx.recipe.loading import load_recipe
from phalanx.recipes.detection.graph import Decoder, match_detections
from phalanx.recipes.detection.options import DetectionOptions
from phalanx.recipes.detection.shapes import make_shapes
from phalanx.run.weights_file import read_record
from phalanx.verbs.evaluate import evaluate_trained
from phalanx.verbs.export import Settings, export_trained
from tests.fixtures.export_here import answer_here
from tests.ranks.runs import averages, train
from tests.recipes.detection.test_training import detection, events_of

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("detection-exports")]
IMAGES = 50
CLASSES = ["circle", "square", "triangle", "cross"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Enough images to compare on, in a folder that can be taken away."""
    folder = tmp_path_factory.mktemp("data") / "shapes"
    return make_shapes(folder, train=24, test=IMAGES, side=64)


@pytest.fixture(scope="module")
def trained(pool, data, small, tmp_path_factory):
    """Long enough for some detections: figures of zero would agree whatever is in a file."""
    run = detection(
        tmp_path_factory.mktemp("trained"), data, small, ranks=1, steps=150,
        ema={"decay": 0.9, "buffers": True},
        options={"mosaic": 0.0, "mixup": 0.0, "pictures": 0, "conf": 0.01},
        evaluate={"every": None, "batch_size": 8}, optimizer={"lr": 0.004, "clip_norm": 10.0},
    )  # fmt: skip
    train(pool, run, ranks=1, timeout_s=250)
    return run


@pytest.fixture(scope="module")
def recorded(trained):
    (evaluated,) = events_of(trained, "evaluate")
    assert evaluated["metrics"]["recall"] > 0
    return evaluated["metrics"]


@pytest.fixture(scope="module")
def model(trained, data, small):
    """The averaged weights in Ultralytics' own model, without any of our loading."""
    recipe = load_recipe("detection", {"data": str(data), "model": str(small), "image_size": 64})
    network = recipe.model().eval()
    network.load_state_dict(averages(trained, "best"))
    return network


@pytest.fixture
def ask_here(monkeypatch):
    answer_here(monkeypatch)


@pytest.fixture(scope="module")
def dynamic(trained, tmp_path_factory):
    """The report of an ONNX file for any shape, and the file."""
    with pytest.MonkeyPatch.context() as here:
        answer_here(here)
        done = export(trained, tmp_path_factory.mktemp("exports") / "any", dynamic=True)
    return done, done.folder / "model.onnx"


def export(run, out, form="onnx", **settings):
    return export_trained(str(run.path), form=form, settings=Settings(**settings), out=out)


def run_onnx(path, images):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [given.name for given in session.get_inputs()] == ["images"]
    return torch.from_numpy(session.run(["output0"], {"images": images.numpy()})[0])


def layers(graph):
    """Weights of convolutions."""
    return [t for t in graph.initializer if len(t.dims) == 4 and t.dims[0] > 1]


def real_images(data, size=64):
    files = sorted((data.parent / "images" / "val").iterdir())[:IMAGES]
    read = [cv2.resize(cv2.imread(str(file))[..., ::-1], (size, size)) for file in files]
    return torch.from_numpy(np.stack(read)).permute(0, 3, 1, 2).float() / 255


def test_onnx_finds_what_pytorch_finds_on_fifty_images(dynamic, model, data):
    done, path = dynamic
    images = real_images(data)
    with torch.no_grad():
        wanted, _ = model(images)  # Ultralytics' own decoding
    made = run_onnx(path, images)
    assert (made[:, 4:] - wanted[:, 4:]).abs().max() <= 1e-4
    assert (made[:, :4] - wanted[:, :4]).abs().max() <= 1e-4 * 64
    count, alone = match_detections(wanted, made, DetectionOptions(conf=0.01))
    assert count > IMAGES and alone == 0
    rows = {row["output"]: row for row in done.compared["differences"]}
    assert rows["matched one to one"]["largest"] == 0 and rows["matched one to one"]["limit"] == 0
    assert rows["matched one to one"]["shape"][0] > 0
    assert done.compared["samples"] >= IMAGES
    assert done.files["model.onnx"] > 0
    # Another shape and another number of images than it was traced with.
    wide = torch.rand(3, 3, 96, 160, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(run_onnx(path, wide), model(wide)[0], rtol=1e-4, atol=1e-2)
    about = {p.key: p.value for p in onnx.load(str(path)).metadata_props}
    assert json.loads(about["classes"]) == CLASSES
    assert json.loads(about["preprocessing"])["divide_by"] == 255
    record = read_record(path)
    assert len(record["job_hash"]) == 16 and record["options"]["names"] == CLASSES


def test_a_lost_detection_is_seen(model, data):
    images = real_images(data)[:8]
    with torch.no_grad():
        wanted, _ = model(images)
    options = DetectionOptions(conf=0.01)
    moved = wanted.clone()
    moved[:, 0] += 8.0  # pixels
    assert match_detections(wanted, moved, options)[1] > 0
    assert match_detections(wanted, wanted, options)[1] == 0
    other = wanted.clone()
    other[:, 4:] = other[:, 4:].roll(1, dims=1)  # other classes
    count, alone = match_detections(wanted, other, options)
    assert alone > count // 2


@pytest.mark.usefixtures("ask_here")
def test_half_and_batch_and_opset_are_ready_for_tensorrt(trained, model, data, tmp_path):
    done = export(trained, tmp_path / "half", "tensorrt", half=True, batch=4, opset=20)
    path = tmp_path / "half" / "model.onnx"
    (missing,) = [f for f in done.findings if f.slug == "tensorrt-missing"]
    assert str(path) in missing.what and f"--onnx={path}" in missing.fix
    assert set(done.files) == {"model.onnx"} and not done.is_complete
    assert done.compared["runtime"] == "onnxruntime"
    loaded = onnx.load(str(path))
    assert loaded.opset_import[0].version == 20
    shape = loaded.graph.input[0].type.tensor_type.shape.dim
    # Squares of the training size, not the rectangle of whatever image comes first.
    assert [dim.dim_value for dim in shape] == [4, 3, 64, 64]
    images = real_images(data)[:4]
    made = run_onnx(path, images)
    with torch.no_grad():
        wanted, _ = model(images)
    assert (made[:, 4:] - wanted[:, 4:]).abs().max() <= 1e-2
    assert (made[:, :4] - wanted[:, :4]).abs().max() <= 1e-2 * wanted.max()
    # Places are computed in fp32: in fp16 they would have steps of half a pixel at 640.
    assert not torch.equal(made[:, :4], made[:, :4].half().float())
    weights = [tensor.data_type for tensor in layers(loaded.graph)]
    assert weights and set(weights) == {onnx.TensorProto.FLOAT16}
    rows = {row["output"]: row for row in done.compared["differences"]}
    assert rows["matched one to one"]["limit"] is None  # told, not judged
    assert read_record(path)["options"]["rect"] is False


@pytest.mark.usefixtures("ask_here")
def test_int8_says_what_it_costs(trained, recorded, tmp_path):
    done = export(trained, tmp_path / "int8", int8=True)
    before, after = done.metrics["before"], done.metrics["after"]
    assert before["mAP50"] == pytest.approx(recorded["mAP50"])
    # One scale for places and scores would leave no score above zero, and no detection.
    assert after["mAP50"] > 0.5 * before["mAP50"]
    (note,) = [f for f in done.findings if f.slug == "int8-calibrated"]
    assert "24 samples of the train split" in note.what
    graph = onnx.load(str(tmp_path / "int8" / "model.onnx")).graph
    weights = [tensor.data_type for tensor in layers(graph)]
    assert weights and set(weights) == {onnx.TensorProto.INT8}


@pytest.mark.usefixtures("ask_here")
def test_torchscript_runs_without_the_recipe(trained, model, data, tmp_path):
    export(trained, tmp_path / "script", form="torchscript", batch=2)
    loaded = torch.jit.load(str(tmp_path / "script" / "model.torchscript"))
    images = real_images(data)[:2]
    with torch.no_grad():
        torch.testing.assert_close(loaded(images)[0], model(images)[0], rtol=1e-4, atol=1e-2)
    assert read_record(tmp_path / "script" / "model.torchscript")["recipe"] == "detection"


def test_ultralytics_predicts_with_the_onnx_file(dynamic, trained, data):
    from ultralytics import YOLO

    files = sorted(str(file) for file in (data.parent / "images" / "val").iterdir())[:8]
    results = YOLO(str(dynamic[1]), task="detect").predict(
        files, imgsz=64, conf=0.05, verbose=False, save=False
    )
    assert results[0].names == dict(enumerate(CLASSES))
    torch_results = YOLO(str(trained.final_model / "best.pt")).predict(
        files, imgsz=64, conf=0.05, verbose=False, save=False, batch=1
    )
    counts = [[len(result.boxes) for result in made] for made in (results, torch_results)]
    assert counts[0] == counts[1] and sum(counts[0]) > 0
    for one, other in zip(results, torch_results, strict=True):
        torch.testing.assert_close(one.boxes.data, other.boxes.data, rtol=1e-3, atol=0.05)


def test_ultralytics_loads_and_validates_what_was_written(trained, recorded, data, tmp_path):
    from ultralytics import YOLO

    for file in (trained.final_model / "best.pt", trained.checkpoints / "latest" / "last.pt"):
        found = YOLO(str(file))
        assert found.names == dict(enumerate(CLASSES))
        figures = found.val(
            data=str(data), imgsz=64, batch=8, rect=True, plots=False, verbose=False,
            workers=0, conf=0.01, project=str(tmp_path / "val"),
        )  # fmt: skip
        assert figures.box.map == pytest.approx(recorded["mAP50-95"], abs=1e-3)
        assert figures.box.map50 == pytest.approx(recorded["mAP50"], abs=1e-3)
        assert figures.box.mr == pytest.approx(recorded["recall"], abs=1e-2)
    # Anew: validating fuses the layers of the model that it is given.
    images = [str(image) for image in (data.parent / "images" / "val").iterdir()]
    results = YOLO(str(file)).predict(images, imgsz=64, conf=0.001, verbose=False)
    assert sum(len(result.boxes) for result in results) > 0


@pytest.fixture
def elsewhere(trained, data, tmp_path, monkeypatch):
    """What a machine that never saw the run has: the weights, and images to test with, no train
    split, no model file, another cache."""
    (tmp_path / "models").mkdir()
    shutil.copyfile(trained.final_model / "best.pt", tmp_path / "models" / "best.pt")
    shutil.copytree(trained.checkpoints / "best", tmp_path / "checkpoint-150", symlinks=True)
    for kind in ("images", "labels"):
        shutil.copytree(data.parent / kind / "val", tmp_path / "held-out" / kind / "val")
    file = tmp_path / "held-out.yaml"
    file.write_text(yaml.safe_dump({"path": "held-out", "val": "images/val", "names": CLASSES}))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("given", ["models/best.pt", "checkpoint-150", "onnx"])
def test_weights_alone_evaluate_to_the_same_figures(elsewhere, dynamic, recorded, given):
    if given == "onnx":
        given = str(dynamic[1])
    done = evaluate_trained(given, ["data=held-out.yaml", "evaluate.batch_size=8"])
    assert done.samples == IMAGES
    for name in ("mAP50", "mAP50-95", "precision", "recall"):
        assert done.metrics[name] == pytest.approx(recorded[name], abs=2e-3), name


@pytest.mark.usefixtures("ask_here")
def test_weights_alone_export_without_any_data(elsewhere, trained, model, data):
    done = export_trained("models/best.pt", ["data=gone.yaml"], form="onnx")
    assert done.folder == elsewhere / "models" / "best-onnx"
    images = real_images(data)[:1]
    with torch.no_grad():
        wanted, _ = model(images)
    made = run_onnx(done.folder / "model.onnx", images)
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-2)
    plain = export_trained("models/best.pt", ["data=gone.yaml"])
    stored = load_file(plain.folder / "model.safetensors")
    assert all(torch.equal(stored[name], value) for name, value in averages(trained).items())
    assert read_record(plain.folder / "model.safetensors")["options"]["names"] == CLASSES


@pytest.mark.usefixtures("ask_here")
def test_a_pt_that_ultralytics_wrote_needs_a_word_more(elsewhere, trained):
    with ZipFile("models/best.pt") as signed, ZipFile("theirs.pt", "w") as plain:
        for member in signed.infolist():
            if not member.filename.endswith("/phalanx"):
                plain.writestr(member, signed.read(member))
    with pytest.raises(UserError) as caught:
        export_trained("theirs.pt")
    assert [finding.slug for finding in caught.value.findings] == ["recipe-unknown"]
    given = ["model=theirs.pt", f"names={CLASSES}", "image_size=64"]
    done = export_trained("theirs.pt", given, recipe="detection", out=elsewhere / "plain")
    stored = load_file(done.folder / "model.safetensors")
    assert all(torch.equal(stored[name], value) for name, value in averages(trained).items())


@pytest.mark.usefixtures("ask_here")
def test_code_in_a_pt_is_not_run(elsewhere, tmp_path):
    class Harm:
        def __reduce__(self):
            return (exec, (f"open({str(tmp_path / 'harm')!r}, 'w').close()",))

    torch.save({"model": Harm()}, "harm.pt")
    with pytest.raises(UserError) as caught:
        export_trained("harm.pt", recipe="detection")
    assert [finding.slug for finding in caught.value.findings] == ["init-unsafe"]
    assert not (tmp_path / "harm").exists()


def test_other_classes_than_the_model_has_are_said(elsewhere):
    about = {"path": "held-out", "val": "images/val", "names": [*CLASSES, "star"]}
    (elsewhere / "more.yaml").write_text(yaml.safe_dump(about))
    record = read_record(elsewhere / "models" / "best.pt")
    recipe = load_recipe("detection", {**record["options"], "data": str(elsewhere / "more.yaml")})
    recipe.splits = ("test",)
    (finding,) = recipe.check()
    assert finding.slug == "detection-other-classes"
    assert "the model knows 4 classes" in finding.what and "names 5" in finding.what


def test_other_names_for_the_same_classes_are_said(elsewhere):
    about = {"path": "held-out", "val": "images/val", "names": ["ring", *CLASSES[1:]]}
    (elsewhere / "other.yaml").write_text(yaml.safe_dump(about))
    record = read_record(elsewhere / "models" / "best.pt")
    recipe = load_recipe("detection", {**record["options"], "data": str(elsewhere / "other.yaml")})
    recipe.splits = ("test",)
    (finding,) = recipe.check()
    assert (finding.slug, finding.severity) == ("detection-other-names", "warning")


def test_the_test_key_of_a_data_file_is_a_split_too(elsewhere):
    about = {"path": "held-out", "test": "images/val", "names": CLASSES}
    (elsewhere / "test.yaml").write_text(yaml.safe_dump(about))
    recipe = load_recipe("detection", {"data": str(elsewhere / "test.yaml"), "split": "test"})
    recipe.splits = ("test",)
    assert recipe.check() == []
    assert len(recipe.data("test")) == IMAGES


def test_the_graph_decodes_as_ultralytics_does(model):
    images = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(Decoder(model)(images), model(images)[0], rtol=1e-5, atol=1e-4)
