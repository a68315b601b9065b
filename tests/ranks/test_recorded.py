"""The events that tests feed to readers are those that the product writes."""

import pytest

from tests.fixtures.recorded import record, recorded, shapes


@pytest.mark.full
def test_the_product_writes_what_is_recorded(tmp_path):
    written = set(shapes(record(tmp_path)))
    known = {(*key, *sorted(data)) for key, found in recorded().items() for data in found}
    again = "python -m tests.fixtures.recorded writes the file again"
    assert written == known, again
