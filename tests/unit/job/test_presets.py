"""A preset is a job file taken by name: its values, then the overrides; the name is not kept."""

import pytest

from phalanx.errors import UserError
from phalanx.job import Override, load_job


@pytest.fixture
def job_file(tmp_path):
    (tmp_path / "presets").mkdir()
    (tmp_path / "job.yaml").write_text("recipe: digits\nepochs: 1\nseed: 3\n")
    (tmp_path / "presets" / "paper.yaml").write_text(
        "# As in the paper.\nrecipe: digits\nepochs: 7\n"
    )
    return tmp_path / "job.yaml"


@pytest.mark.parametrize(
    "given",
    [
        "preset=paper",
        Override("preset", "paper", "--config"),
        Override("preset", "paper", "python"),
    ],
)
def test_a_preset_takes_the_place_of_the_job_file(job_file, given):
    loaded = load_job(job_file, ["epochs=9", given, "width=4"])
    job = loaded.job
    assert (job.epochs, job.options) == (9, {"width": 4})
    assert job.seed == 0  # nothing of job.yaml
    assert "preset" not in str(job.model_dump(exclude_unset=True))
    assert load_job(job_file, [given]).origin("epochs").line_for("epochs", 2) == "epochs: 2"
    assert str(load_job(job_file, [given]).origin("epochs")).endswith("presets/paper.yaml:3")


def test_an_unknown_preset_names_those_there_are(job_file):
    with pytest.raises(UserError) as caught:
        load_job(job_file, ["preset=papr"])
    (finding,) = caught.value.findings
    assert finding.slug == "unknown-preset"
    assert "did you mean `paper`?" in finding.what
    assert finding.fix == "preset=paper"


def test_a_job_without_a_file_has_no_presets():
    with pytest.raises(UserError) as caught:
        load_job({"recipe": "digits", "epochs": 1}, ["preset=paper"])
    assert [finding.slug for finding in caught.value.findings] == ["preset-without-file"]


@pytest.fixture
def job_with_a_large_batch(job_file):
    large = "# Many GPUs.\nrecipe: digits\nfrom_batch: 64\nepochs: 5\nglobal_batch_size: 64\n"
    (job_file.parent / "presets" / "large.yaml").write_text(large)
    return job_file


@pytest.mark.parametrize(
    "given", ["global_batch_size=128", Override("global_batch_size", "64", "--batch-size")]
)
def test_a_preset_for_large_batches_is_taken_by_itself_and_said(job_with_a_large_batch, given):
    loaded = load_job(job_with_a_large_batch, [given])
    assert loaded.job.epochs == 5
    (note,) = loaded.findings
    assert (note.slug, note.severity) == ("preset-taken", "note")
    assert "`large`" in note.what and "64 or more" in note.why and "preset=none" in note.fix


@pytest.mark.parametrize(
    ("given", "epochs"),
    [
        ([], 1),
        (["global_batch_size=63"], 1),
        (["preset=none", "global_batch_size=64"], 1),
        (["preset=paper", "global_batch_size=64"], 7),
        (["preset=large"], 5),
    ],
)
def test_it_is_not_taken_for_others_or_against_a_word(job_with_a_large_batch, given, epochs):
    loaded = load_job(job_with_a_large_batch, given)
    assert (loaded.job.epochs, loaded.findings) == (epochs, ())
