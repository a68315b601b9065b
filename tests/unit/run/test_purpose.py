"""What ranks are started for: a file that they read, and that is gone where they train."""

import pytest

from phalanx.run.directory import RunDirectory
from phalanx.run.purpose import (
    TRAIN,
    Evaluate,
    Measure,
    Record,
    read_purpose,
    write_purpose,
)


@pytest.mark.parametrize(
    "purpose",
    [TRAIN, Measure((8, 16)), Measure(()), Evaluate("runs/x/model.onnx"), Record(), Record(False)],
    ids=str,
)
def test_it_survives_its_file(tmp_path, purpose):
    run = RunDirectory(tmp_path)
    write_purpose(run, purpose)
    assert read_purpose(run) == purpose


def test_a_run_that_trains_has_no_file_also_where_one_was(tmp_path):
    run = RunDirectory(tmp_path)
    write_purpose(run, Measure((8,)))
    write_purpose(run, TRAIN)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["{", "{}", '{"purpose": {"kind": "dance"}}'])
def test_a_damaged_file_is_no_training(tmp_path, text):
    run = RunDirectory(tmp_path)
    run.purpose_file.write_text(text)
    with pytest.raises(ValueError):
        read_purpose(run)
