"""The Trace as a file."""

import json

from phalanx.codec import from_json, to_json
from phalanx.planner.schema.trace import Trace


def test_a_trace_survives_json(make_trace):
    trace = make_trace(options={"width": 3, "nested": {"a": [1, 2]}})
    assert from_json(Trace, json.loads(json.dumps(to_json(trace)))) == trace
