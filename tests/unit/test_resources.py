from __future__ import annotations

import pytest

from rackgate.resources.pod_requests import pod_requests
from rackgate.resources.quantity import QuantityError
from rackgate.wire.core import Container, PodSpec, Resources


def container(
    requests: dict[str, str | int | float] | None = None,
    limits: dict[str, str | int | float] | None = None,
    *,
    sidecar: bool = False,
) -> Container:
    resources = Resources(requests=requests or {}, limits=limits or {})
    return Container(name="c", resources=resources, restart_policy="Always" if sidecar else None)


@pytest.mark.requirement("CAP-05")
def test_containers_add_up() -> None:
    spec = PodSpec(
        containers=(container({"cpu": "1"}), container({"cpu": "500m", "memory": "1Gi"}))
    )
    assert pod_requests(spec) == {"cpu": 1500, "memory": 2**30}


def test_a_limit_counts_where_no_request_is_given() -> None:
    spec = PodSpec(containers=(container({"cpu": "1"}, {"cpu": "2", "memory": "1Ki"}),))
    assert pod_requests(spec) == {"cpu": 1000, "memory": 1024}


def test_a_request_of_zero_stands_before_the_limit() -> None:
    assert pod_requests(PodSpec(containers=(container({"cpu": "0"}, {"cpu": "2"}),))) == {"cpu": 0}


@pytest.mark.requirement("CAP-05")
def test_the_largest_init_phase_counts_when_it_is_more() -> None:
    spec = PodSpec(
        init_containers=(container({"cpu": "3"}), container({"cpu": "2", "memory": "5"})),
        containers=(container({"cpu": "1", "memory": "7"}),),
    )
    assert pod_requests(spec) == {"cpu": 3000, "memory": 7}


@pytest.mark.requirement("CAP-05")
def test_sidecars_run_beside_later_init_containers_and_the_main_ones() -> None:
    spec = PodSpec(
        init_containers=(
            container({"cpu": "4"}),
            container({"cpu": "1"}, sidecar=True),
            container({"cpu": "5"}),
        ),
        containers=(container({"cpu": "2"}),),
    )
    assert pod_requests(spec) == {"cpu": 6000}


@pytest.mark.requirement("CAP-05")
def test_sidecars_add_to_the_containers() -> None:
    spec = PodSpec(
        init_containers=(container({"cpu": "1"}, sidecar=True),),
        containers=(container({"cpu": "2"}),),
    )
    assert pod_requests(spec) == {"cpu": 3000}


@pytest.mark.requirement("CAP-05")
def test_overhead_is_added() -> None:
    spec = PodSpec(containers=(container({"cpu": "1"}),), overhead={"cpu": "250m", "memory": "1"})
    assert pod_requests(spec) == {"cpu": 1250, "memory": 1}


def test_resources_of_the_whole_pod_take_the_place_of_the_containers() -> None:
    spec = PodSpec(
        containers=(container({"cpu": "1", "nvidia.com/gpu": "2"}),),
        resources=Resources(requests={"cpu": "8"}, limits={"cpu": "9", "memory": "1Gi"}),
        overhead={"cpu": "1"},
    )
    assert pod_requests(spec) == {"cpu": 9000, "nvidia.com/gpu": 2, "memory": 2**30}


def test_a_limit_of_the_whole_pod_leaves_the_requests_of_the_containers() -> None:
    spec = PodSpec(containers=(container({"cpu": "1"}),), resources=Resources(limits={"cpu": "9"}))
    assert pod_requests(spec) == {"cpu": 1000}


def test_the_pods_resource_is_left_to_callers() -> None:
    spec = PodSpec(containers=(container({"cpu": "1", "pods": "5"}),))
    assert pod_requests(spec) == {"cpu": 1000}


def test_a_spec_without_containers_asks_for_nothing() -> None:
    assert pod_requests(PodSpec()) == {}


def test_garbage_is_rejected_with_its_place() -> None:
    with pytest.raises(QuantityError, match=r'^containers\["c"\]\.resources\.requests\.cpu: "x"'):
        pod_requests(PodSpec(containers=(container({"cpu": "x"}),)))
