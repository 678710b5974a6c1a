"""Who calls the visibility API, and what is asked of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.wire.core import Meta, OwnerReference
from rackgate_assigner.visibility import answer_cache
from rackgate_assigner.visibility.answer_cache import AnswerCache
from rackgate_assigner.visibility.answer_limit import AnswerLimit
from rackgate_assigner.visibility.answers import (
    PageRange,
    PendingRequest,
    RejectedError,
    access_review,
    discovery,
    encoded_items,
    parse_path,
    parse_range,
    positions_of,
    summary,
    within,
)
from rackgate_assigner.visibility.front_proxy import (
    FrontProxy,
    User,
    is_front_proxy,
    read_front_proxy,
    user_of,
)
from rackgate_assigner.visibility.pending_order import PendingOrder, Position

ROOT = "/apis/visibility.kueue.x-k8s.io"
CONFIG = {
    "requestheader-client-ca-file": "-----BEGIN CERTIFICATE-----",
    "requestheader-allowed-names": '["front-proxy-client"]',
    "requestheader-username-headers": '["X-Remote-User"]',
    "requestheader-group-headers": '["X-Remote-Group"]',
    "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    "requestheader-uid-headers": '["X-Remote-Uid"]',
}


def proxy(**changes: str) -> FrontProxy:
    found = read_front_proxy({**CONFIG, **changes})
    assert found is not None
    return found


def certificate(name: str) -> dict[str, Any]:
    return {"subject": ((("organizationName", "front-proxy-client"),), (("commonName", name),))}


@pytest.mark.requirement("OPS-05")
def test_only_allowed_names_of_a_verified_certificate_count() -> None:
    assert is_front_proxy(proxy(), certificate("front-proxy-client"))
    assert not is_front_proxy(proxy(), certificate("somebody"))
    assert not is_front_proxy(proxy(), {})
    assert not is_front_proxy(proxy(), None)


def test_without_allowed_names_every_verified_certificate_counts() -> None:
    anyone = proxy(**{"requestheader-allowed-names": "[]"})
    assert is_front_proxy(anyone, certificate("somebody"))
    assert not is_front_proxy(anyone, {})
    assert not is_front_proxy(anyone, {"subject": ((("organizationName", "x"),),)})


@pytest.mark.parametrize("key", ["requestheader-client-ca-file", "requestheader-username-headers"])
def test_without_authority_or_header_there_is_no_front_proxy(key: str) -> None:
    assert read_front_proxy({name: value for name, value in CONFIG.items() if name != key}) is None
    assert read_front_proxy({}) is None


@pytest.mark.parametrize("value", ["X-Remote-User", "{}", "[1]", "["])
def test_a_malformed_list_is_named(value: str) -> None:
    with pytest.raises(
        ValueError, match=r"data\.requestheader-group-headers: expected a JSON list"
    ):
        proxy(**{"requestheader-group-headers": value})


def test_the_user_is_read_from_the_named_headers_only() -> None:
    headers = [
        ("x-remote-user", "ann"),
        ("X-Remote-Group", "team"),
        ("x-remote-group", "system:authenticated"),
        ("X-Remote-Extra-Example.com%2Fscopes", "a"),
        ("X-Remote-Extra-Example.com%2Fscopes", "b"),
        ("X-Remote-Uid", "7"),
        ("X-Other-Group", "system:masters"),
    ]
    assert user_of(proxy(), headers) == User(
        "ann", "7", ("team", "system:authenticated"), (("example.com/scopes", ("a", "b")),)
    )


@pytest.mark.parametrize("headers", [[], [("X-Remote-User", "")], [("X-Remote-Group", "team")]])
def test_a_request_without_a_user_is_of_nobody(headers: list[tuple[str, str]]) -> None:
    assert user_of(proxy(), headers) is None


def test_a_user_with_too_many_groups_is_not_accepted() -> None:
    groups = [("X-Remote-Group", f"g{number}") for number in range(1001)]
    assert user_of(proxy(), [("X-Remote-User", "ann"), *groups]) is None
    assert user_of(proxy(), [("X-Remote-User", "ann"), *groups[1:]]) is not None


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_paths_of_both_versions_and_kinds_of_queue(version: str) -> None:
    assert parse_path(f"{ROOT}/{version}/clusterqueues/cq/pendingworkloads") == PendingRequest(
        version, "clusterqueues", "", "cq"
    )
    local = f"{ROOT}/{version}/namespaces/team/localqueues/lq/pendingworkloads"
    assert parse_path(local) == PendingRequest(version, "localqueues", "team", "lq")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        f"{ROOT}/v1/clusterqueues/cq/pendingworkloads",
        f"{ROOT}/v1beta2/clusterqueues/cq",
        f"{ROOT}/v1beta2/clusterqueues/cq/status",
        f"{ROOT}/v1beta2/clusterqueues//pendingworkloads",
        f"{ROOT}/v1beta2/localqueues/lq/pendingworkloads",
        f"{ROOT}/v1beta2/namespaces/team/clusterqueues/cq/pendingworkloads",
        f"{ROOT}/v1beta2/namespaces//localqueues/lq/pendingworkloads",
        f"{ROOT}/v1beta2/namespaces/team/localqueues/lq/pendingworkloads/more",
        "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/cq/pendingworkloads",
    ],
)
def test_no_other_path_is_served(path: str) -> None:
    assert parse_path(path) is None


@pytest.mark.parametrize(
    ("query", "limit", "offset"),
    [
        ({}, 1000, 0),
        ({"limit": "0"}, 1000, 0),
        ({"limit": "5", "offset": "3"}, 5, 3),
        ({"limit": "4001"}, 4000, 0),
        ({"limit": "9223372036854775807", "offset": "9223372036854775807"}, 4000, 2**63 - 1),
        ({"limit": "-1", "offset": "-7"}, 0, 0),
    ],
)
def test_limit_and_offset_are_bounded(query: dict[str, str], limit: int, offset: int) -> None:
    assert parse_range(query) == PageRange(limit, offset)


@pytest.mark.parametrize("value", ["x", "1.5", "--1", "٣", "9" * 20, "1e3", " 1"])
def test_no_other_number_is_accepted(value: str) -> None:
    with pytest.raises(RejectedError, match="query parameter limit: expected an integer") as found:
        parse_range({"limit": value})
    assert found.value.status == 400


def test_discovery_lists_both_versions_and_subresources() -> None:
    def read(path: str) -> dict[str, Any]:
        found = discovery(path)
        assert found is not None
        document: dict[str, Any] = json.loads(found)
        return document

    (group,) = read("/apis")["groups"]
    assert [version["version"] for version in group["versions"]] == ["v1beta2", "v1beta1"]
    assert read(ROOT)["preferredVersion"]["version"] == "v1beta2"
    listed = read(f"{ROOT}/v1beta1")
    assert listed["groupVersion"] == "visibility.kueue.x-k8s.io/v1beta1"
    named = {entry["name"]: (entry["namespaced"], entry["verbs"]) for entry in listed["resources"]}
    assert named == {
        "clusterqueues/pendingworkloads": (False, ["get"]),
        "localqueues/pendingworkloads": (True, ["get"]),
        "workloads/explanation": (True, ["get"]),
    }
    assert discovery(f"{ROOT}/v1") is None
    assert discovery("/apis/kueue.x-k8s.io") is None


def positions(count: int) -> list[Position]:
    return [Position(f"team/w{at}", "team/lq", 3, at + 2, at) for at in range(count)]


def test_a_page_ends_where_the_list_ends() -> None:
    order = PendingOrder({"cq": positions(5)}, {"team/lq": positions(4)})
    asked = PendingRequest("v1beta2", "clusterqueues", "", "cq")
    assert len(positions_of(order, asked)) == 5
    assert within(PageRange(2, 1), 5) == PageRange(2, 1)
    assert within(PageRange(2, 4), 5) == PageRange(1, 4)
    # However large an offset is, it asks for the same empty part: one entry of the cache.
    assert within(PageRange(2, 2**63 - 1), 5) == within(PageRange(9, 5), 5) == PageRange(0, 5)
    local = PendingRequest("v1beta2", "localqueues", "team", "lq")
    assert len(positions_of(order, local)) == 4
    other = PendingRequest("v1beta2", "localqueues", "other", "lq")
    assert len(positions_of(order, other)) == 0


def items(count: int, metadata: dict[str, Meta | None]) -> list[bytes]:
    """Encode all items at once."""
    steps = encoded_items(positions(count), metadata)
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            made: list[bytes] = finished.value
            return made


def test_the_cache_holds_answers_of_one_order_and_so_many_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answer_cache, "MAX_BYTES", 10)
    cache, order = AnswerCache(), PendingOrder()
    asked = PendingRequest("v1beta2", "clusterqueues", "", "cq")
    first, second, third = (PageRange(1, at) for at in range(3))
    cache.put(order, asked, first, b"12345")
    cache.put(order, asked, second, b"12345")
    assert cache.get(order, asked, first) == b"12345"
    cache.put(order, asked, third, b"12345")
    assert cache.get(order, asked, second) is None, "the longest unused one goes first"
    assert cache.get(order, asked, first) == cache.get(order, asked, third) == b"12345"
    cache.put(order, asked, second, b"longer than all of it")
    assert [cache.get(order, asked, part) for part in (first, second, third)] == [None] * 3
    cache.put(order, asked, first, b"1")
    assert cache.get(PendingOrder(), asked, first) is None, "an order of another time"


def test_answers_take_a_part_of_the_time_of_the_process() -> None:
    limit, now = AnswerLimit(), 1000.0
    limit.check_time(now)
    limit.spend(0.7)  # 0.5 s in advance, and 0.2 s too much
    for later_s in (0.0, 1.0, 1.9):
        with pytest.raises(RejectedError) as rejected:
            limit.check_time(now + later_s)
        assert (rejected.value.status, rejected.value.retry_after_s) == (429, 1)
    limit.check_time(now + 2.1)


def test_a_summary_has_the_form_of_kueue() -> None:
    owner = OwnerReference("Job", "train", "u1", "batch/v1", controller=True)
    meta = Meta(
        name="w0",
        namespace="team",
        uid="hidden",
        creation_timestamp="2026-08-01T12:00:00Z",
        owner_references=(owner,),
    )
    # The second one was deleted since the order was built.
    found = json.loads(summary("v1beta1", items(2, {"team/w0": meta, "team/w1": None})))
    assert found == {
        "kind": "PendingWorkloadsSummary",
        "apiVersion": "visibility.kueue.x-k8s.io/v1beta1",
        "metadata": {},
        "items": [
            {
                "metadata": {
                    "name": "w0",
                    "namespace": "team",
                    "creationTimestamp": "2026-08-01T12:00:00Z",
                    "ownerReferences": [
                        {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u1"}
                    ],
                },
                "priority": 3,
                "localQueueName": "lq",
                "positionInClusterQueue": 2,
                "positionInLocalQueue": 0,
            }
        ],
    }


def test_a_review_asks_for_exactly_this_queue() -> None:
    user = User("ann", "7", ("team",), (("scopes", ("a",)),))
    spec = json.loads(access_review(user, PendingRequest("v1beta2", "localqueues", "team", "lq")))
    assert spec["spec"] == {
        "user": "ann",
        "uid": "7",
        "groups": ["team"],
        "extra": {"scopes": ["a"]},
        "resourceAttributes": {
            "verb": "get",
            "group": "visibility.kueue.x-k8s.io",
            "version": "v1beta2",
            "resource": "localqueues",
            "subresource": "pendingworkloads",
            "name": "lq",
            "namespace": "team",
        },
    }
