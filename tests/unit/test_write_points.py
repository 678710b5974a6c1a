"""What the harness of chaos takes for one kind of write."""

from __future__ import annotations

import json

from tests.support.proxy_records import Write
from tests.support.write_points import WritePoints, shape

WORKLOAD = "/apis/kueue.x-k8s.io/v1beta2/namespaces/a/workloads/w/status"
WRITE = Write("assigner-0/0", "PATCH", WORKLOAD, 0.0)


def test_a_shape_names_fields_and_conditions_not_values() -> None:
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": "1"},
        {"op": "replace", "path": "/spec/replicatedJobs/0/template", "value": {"a": 1}},
        {"op": "replace", "path": "/spec/replicatedJobs/1/template", "value": {"a": 2}},
    ]
    assert shape(json.dumps(patch).encode()) == " replace /spec/replicatedJobs/*/template"
    body = {
        "apiVersion": "v1",
        "metadata": {"name": "w"},
        "status": {"conditions": [{"type": "Admitted", "status": "True"}], "admission": {}},
    }
    assert shape(json.dumps(body).encode()) == " Admitted=True metadata.name status.admission"
    assert shape(b"") == ""
    assert shape(b"{") == " (no JSON)"


def test_the_first_write_of_a_point_dies_before_the_next_after_and_the_third_goes_on() -> None:
    points = WritePoints()
    body = b'{"status":{"conditions":[{"type":"Admitted","status":"True"}]}}'
    other = body.replace(b"True", b"False")

    def strike(written: bytes) -> str | None:
        trap = points.trap(WRITE, {}, written)
        return None if trap is None else trap.when

    assert [strike(body), strike(other), strike(body), strike(body)] == [
        "before",
        "before",
        "after",
        None,
    ]
    assert len(points.left) == 1
    assert strike(other) == "after"
    assert points.left == []
    assert points.rights.keys() == {("assigner", "PATCH", "workloads/status")}


def test_deaths_are_limited() -> None:
    points = WritePoints(most=1)
    assert points.trap(WRITE, {}, b'{"spec":1}') is not None
    assert points.trap(WRITE, {}, b"{}") is None
    assert len(points.left) == 2
