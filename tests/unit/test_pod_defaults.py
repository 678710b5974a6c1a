"""A table of pods as the API server creates them, step by step."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rackgate.resources.pod_defaults import DefaultedPod, apply_pod_defaults, summarize_limit_ranges
from rackgate.wire import core
from tests.unit.assigner.builders import limit_range, runtime_class

pytestmark = pytest.mark.requirement("CAP-05")

MI = 2**20


def spec(*containers: dict[str, Any], **more: Any) -> core.PodSpec:
    """A pod's spec; each container is given by its resources."""
    named = [{"name": f"c{i}", "resources": own} for i, own in enumerate(containers)]
    return msgspec.convert({"containers": named, **more}, core.PodSpec)


def created(found: core.PodSpec, *ranges: core.LimitRange) -> DefaultedPod:
    """Under these LimitRanges."""
    return apply_pod_defaults(found, summarize_limit_ranges(ranges) if ranges else None, None)


def texts(found: DefaultedPod) -> list[str]:
    """What is refused: path and text."""
    return [f"{problem.path}: {problem.text}" for problem in found.problems]


DEFAULTS = limit_range("limits", {"default": {"cpu": "2"}, "defaultRequest": {"cpu": "500m"}})
REQUESTS: dict[str, tuple[core.PodSpec, tuple[core.LimitRange, ...], dict[str, int]]] = {
    "limits as requests": (
        spec({"limits": {"cpu": "1", "memory": "1Mi"}}),
        (),
        {"cpu": 1000, "memory": MI},
    ),
    "a container without anything gets the default": (
        spec({}, {"requests": {"cpu": "1"}}),
        (DEFAULTS,),
        {"cpu": 1500},
    ),
    "a limit is a request before any default": (
        spec({"limits": {"cpu": "1"}}),
        (DEFAULTS,),
        {"cpu": 1000},
    ),
    "a request of zero is one": (spec({"requests": {"cpu": "0"}}), (DEFAULTS,), {"cpu": 0}),
    "each resource for itself": (
        spec({"requests": {"memory": "1Mi"}}),
        (DEFAULTS,),
        {"cpu": 500, "memory": MI},
    ),
    "init containers and sidecars too": (
        spec({}, initContainers=[{"name": "s", "restartPolicy": "Always"}, {"name": "i"}]),
        (DEFAULTS,),
        {"cpu": 1000},
    ),
    "a default request follows from min and max": (
        spec({}),
        (limit_range("limits", {"max": {"cpu": "3"}, "min": {"memory": "2Mi"}}),),
        {"cpu": 3000, "memory": 2 * MI},
    ),
    "several LimitRanges add up": (
        spec({}),
        (DEFAULTS, limit_range("more", {"defaultRequest": {"memory": "1Mi"}})),
        {"cpu": 500, "memory": MI},
    ),
    "of different defaults the largest": (
        spec({}),
        (DEFAULTS, limit_range("a", {"defaultRequest": {"cpu": "700m"}})),
        {"cpu": 700},
    ),
    "pod-level requests stand for all containers": (
        spec({}, {"requests": {"cpu": "1"}}, resources={"requests": {"cpu": "4"}}),
        (DEFAULTS,),
        {"cpu": 4000},
    ),
    "pod-level limits alone take the requests of containers": (
        spec({"requests": {"cpu": "1"}}, resources={"limits": {"cpu": "4", "memory": "8Mi"}}),
        (),
        {"cpu": 1000, "memory": 8 * MI},
    ),
    "pod-level requests are set before defaults of LimitRanges": (
        spec({}, resources={"limits": {"cpu": "4"}}),
        (DEFAULTS,),
        {"cpu": 4000},
    ),
    "huge pages of containers become those of the pod": (
        spec(
            {"limits": {"cpu": "1", "hugepages-2Mi": "4Mi"}},
            resources={"requests": {"memory": "1Mi"}},
        ),
        (),
        {"cpu": 1000, "memory": MI, "hugepages-2Mi": 4 * MI},
    ),
    "a LimitRange for pods sets nothing": (
        spec({"requests": {"cpu": "1"}}),
        (limit_range("pods", {"type": "Pod", "min": {"cpu": "1"}}),),
        {"cpu": 1000},
    ),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_requests_are_those_of_the_pod_that_is_created(case: str) -> None:
    found, ranges, expected = REQUESTS[case]
    answer = created(found, *ranges)
    assert (answer.requests, texts(answer)) == (expected, [])


def of(kind: str, **bounds: dict[str, str | int | float]) -> core.LimitRange:
    """A LimitRange of one item that has no default."""
    item = core.LimitRangeItem(type=kind, **bounds)
    meta = core.Meta(name="limits", namespace="team")
    return core.LimitRange(metadata=meta, spec=core.LimitRangeSpec(limits=(item,)))


REFUSED: dict[str, tuple[core.PodSpec, tuple[core.LimitRange, ...], str]] = {
    "more than max": (
        spec({"requests": {"cpu": "1"}}, {"requests": {"cpu": "1"}, "limits": {"cpu": "4"}}),
        (limit_range("limits", {"max": {"cpu": "2"}}),),
        ".containers[1]: maximum cpu usage per Container is 2, but limit is 4 "
        '(LimitRange "limits")',
    ),
    "no limit": (
        spec({"requests": {"cpu": "1"}}),
        (of("Container", max={"cpu": "2"}),),
        ".containers[0]: maximum cpu usage per Container is 2, but no limit is specified",
    ),
    "an init container below min": (
        spec({}, initContainers=[{"name": "i", "resources": {"requests": {"cpu": "50m"}}}]),
        (limit_range("limits", {"min": {"cpu": "100m"}}),),
        ".initContainers[0]: minimum cpu usage per Container is 100m, but request is 50m",
    ),
    "a limit too far above its request": (
        spec({"requests": {"cpu": "1"}, "limits": {"cpu": "3"}}),
        (of("Container", max_limit_request_ratio={"cpu": "2"}),),
        ".containers[0]: cpu max limit to request ratio per Container is 2, but provided ratio "
        "is 3.000000",
    ),
    "a request of zero has no ratio": (
        spec({"requests": {"cpu": "0"}, "limits": {"cpu": "3"}}),
        (of("Container", max_limit_request_ratio={"cpu": "2"}),),
        ".containers[0]: cpu max limit to request ratio per Container is 2, but no request",
    ),
    "containers together above max": (
        spec({"limits": {"cpu": "1500m"}}, {"limits": {"cpu": "1"}}),
        (of("Pod", max={"cpu": "2"}),),
        ": maximum cpu usage per Pod is 2, but limit is 2500m",
    ),
    "pod-level resources above max": (
        spec({}, resources={"limits": {"cpu": "3"}}),
        (of("Pod", max={"cpu": "2"}),),
        ": maximum cpu usage per Pod is 2, but limit is 3",
    ),
    "a request above the default limit": (
        spec({"requests": {"cpu": "3"}}),
        (DEFAULTS,),
        ".containers[0]: request 3 must be less than or equal to cpu limit of 2",
    ),
    "defaults beyond the pod's own request": (
        spec({}, {}, resources={"requests": {"cpu": "600m"}}),
        (DEFAULTS,),
        ".resources: cpu request 600m must be greater than or equal to aggregate container "
        "requests of 1",
    ),
    "a default limit beyond the pod's own": (
        spec({}, resources={"limits": {"cpu": "1"}}),
        (DEFAULTS,),
        ".containers[0]: cpu limit 2 must be less than or equal to pod limits of 1",
    ),
    "requests of containers beyond the pod's limit": (
        spec({"requests": {"cpu": "2"}}, resources={"limits": {"cpu": "1"}}),
        (),
        ".resources: request 2 must be less than or equal to cpu limit of 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_pod_that_would_be_rejected_is_reported_in_the_words_of_the_api_server(case: str) -> None:
    found, ranges, expected = REFUSED[case]
    (text,) = texts(created(found, *ranges))
    assert text.startswith(expected)


def test_a_runtime_class_adds_its_overhead_once() -> None:
    found = spec({"requests": {"cpu": "1"}}, runtimeClassName="kata", overhead={"cpu": "0.25"})
    kata = runtime_class("kata", {"cpu": "250m", "memory": "1Mi"})
    same = runtime_class("kata", {"cpu": "250m"})
    assert apply_pod_defaults(found, None, same).requests == {"cpu": 1250}
    assert apply_pod_defaults(found, None, same).problems == ()
    assert "doesn't match" in texts(apply_pod_defaults(found, None, kata))[0]
    plain = spec({"requests": {"cpu": "1"}}, runtimeClassName="kata")
    assert apply_pod_defaults(plain, None, kata).requests == {"cpu": 1250, "memory": MI}


def test_an_overhead_without_a_class_is_rejected() -> None:
    found = spec({}, overhead={"cpu": "1"})
    for classes in (None, runtime_class("kata")):
        (text,) = texts(apply_pod_defaults(found, None, classes))
        assert text.startswith(".overhead: Pod Overhead set without corresponding RuntimeClass")


def test_a_missing_runtime_class_is_named() -> None:
    (text,) = texts(apply_pod_defaults(spec({}, runtimeClassName="kata"), None, None))
    assert text.startswith('.runtimeClassName: RuntimeClass "kata" not found')


def test_a_runtime_class_says_where_its_pods_run() -> None:
    kata = runtime_class(
        "kata", nodeSelector={"vm": "yes"}, tolerations=[{"key": "vm", "operator": "Exists"}]
    )
    more = spec({}, runtimeClassName="kata", nodeSelector={"zone": "a"})
    found = apply_pod_defaults(more, None, kata)
    assert found.node_selector == {"zone": "a", "vm": "yes"}
    assert [one.key for one in found.tolerations] == ["vm"]
    other = spec({}, runtimeClassName="kata", nodeSelector={"vm": "no"})
    (text,) = texts(apply_pod_defaults(other, None, kata))
    assert text == (
        ".nodeSelector: conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; "
        "pod.spec.nodeSelector[vm] = no"
    )
