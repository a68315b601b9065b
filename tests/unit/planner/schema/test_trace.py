"""The Trace as a file."""

import json

from phalanx.planner.schema.trace import Trace


def test_a_trace_survives_json(make_trace):
    trace = make_trace(options={"width": 3, "nested": {"a": [1, 2]}})
    assert Trace.from_json(json.loads(json.dumps(trace.to_json()))) == trace
