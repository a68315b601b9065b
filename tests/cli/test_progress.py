"""A run as it happens, on one line each."""

from phalanx.output.progress import describe_sample
from phalanx.run.event_kinds import ModelSample


def test_a_sample_is_one_line_that_fits():
    rows = ModelSample("2 +\n2", "five", "four")
    assert describe_sample(rows, 78) == "2 + 2 -> five (wanted four)"
    long = ModelSample("x " * 50 + "a " * 50, "b", "c " * 50)
    line = describe_sample(long, 78)
    assert len(line) <= 78
    assert line.startswith("...")
    assert "a -> b (wanted c c" in line
