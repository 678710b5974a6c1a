"""Installing on an API server that is busy, or has not taken in its roles yet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from rackgate.kube.client import Client
from rackgate.kube.errors import (
    AlreadyExistsError,
    ForbiddenError,
    KubeError,
    ServerError,
    TransportError,
)
from rackgate_cli.controlplane import install
from rackgate_cli.controlplane.install import access_reviews
from rackgate_cli.errors import CommandError
from rackgate_cli.locations import deploy_dir
from tests.support.rights import SERVICES, USER, granted

SPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.example.com"},
    "spec": {"group": "example.com", "names": {"plural": "things"}, "versions": []},
}


def busy(kind: type[KubeError] = ServerError) -> KubeError:
    return kind("PATCH", "/x", status=0 if kind is TransportError else 503, message="busy")


class Server:
    """Answers requests with what was laid out for their verb, one after another, then with `last`.

    Attributes:
        asked: the verbs of all requests.
    """

    def __init__(self, last: object = None, **answers: list[object]) -> None:
        self.audited_requests: list[str] = []
        self._last, self._answers = last if last is not None else {}, answers

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        async def answer(*_: object) -> bytes:
            self.audited_requests.append(verb)
            left = self._answers.get(verb, [])
            found = left.pop(0) if left else self._last
            if isinstance(found, KubeError):
                raise found
            return json.dumps(found).encode()

        return answer

    @property
    def client(self) -> Client:
        return cast(Client, self)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_POLL_S", 0.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_LIMIT_S", 0.0)


async def test_what_an_api_server_fails_to_answer_is_applied_again(tmp_path: Path) -> None:
    server = Server(apply=[busy(), busy(TransportError)])
    await install.apply_all(server.client, [SPACE])
    assert server.audited_requests == ["apply"] * 3
    server = Server({"status": {"token": "t"}}, create=[busy(TransportError)])
    await install.write_token(server.client, "webhook", tmp_path / "token")
    assert (tmp_path / "token").read_text() == "t"


async def test_a_create_that_got_through_without_an_answer_becomes_a_replacement() -> None:
    taken = AlreadyExistsError("POST", "/x", status=409)
    stored = {"metadata": {"resourceVersion": "7"}}
    server = Server(stored, create=[busy(TransportError), taken], replace=[busy()])
    await install.put_operator(server.client, [CRD])
    assert server.audited_requests == ["create", "create", "get", "replace", "replace"]


@pytest.mark.usefixtures("impatient")
async def test_an_api_server_that_stays_busy_is_reported_with_its_words() -> None:
    with pytest.raises(CommandError, match='cannot apply Namespace "n": busy'):
        await install.apply_all(Server(busy()).client, [SPACE])
    with pytest.raises(CommandError, match=r"the API server calls the webhook: not within .*busy"):
        await install.webhook_answers(Server(busy()).client)


async def test_a_rejection_is_reported_at_once() -> None:
    server = Server(ForbiddenError("PATCH", "/x", status=403, message="not you"))
    with pytest.raises(CommandError, match="not you"):
        await install.apply_all(server.client, [SPACE])
    assert server.audited_requests == ["apply"]


def test_every_right_of_a_service_is_asked_for() -> None:
    deploy = deploy_dir()
    osmo = (deploy / "osmo" / "rbac.yaml", deploy / "osmo" / "cluster")
    more = [deploy / name / "rbac.yaml" for name in ("unlabelled", "retention", "gangs")]
    rbac = install.documents(deploy / "rbac", deploy / "cluster", *osmo, *more)
    asked = {service: set(_rights(USER.format(service), rbac)) for service in SERVICES}
    assert asked == {service: granted(built_in=False)[service] for service in SERVICES}


def _rights(user: str, rbac: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    for review in access_reviews(rbac):
        spec = review["spec"]
        if spec["user"] == user:
            what = spec["resourceAttributes"]
            resource = "/".join(filter(None, (what["resource"], what["subresource"])))
            yield what["verb"], what["group"], resource


def test_a_right_is_asked_for_where_it_is_bound() -> None:
    asked = [
        review["spec"]["resourceAttributes"]
        for review in access_reviews(install.documents(deploy_dir() / "rbac"))
        if review["spec"]["user"] == USER.format("assigner")
    ]
    leases = {(a["verb"], a["name"], a["namespace"]) for a in asked if a["resource"] == "leases"}
    own = "rackgate-system"
    assert leases == {
        ("create", "", own),
        ("get", "rackgate-assigner", own),
        ("update", "rackgate-assigner", own),
    }
    elsewhere = [a for a in asked if a["resource"] not in ("leases", "secrets")]
    assert {a["namespace"] for a in elsewhere} == {""}


async def test_the_services_rights_are_waited_for() -> None:
    rbac = install.documents(deploy_dir() / "rbac")
    count = len(access_reviews(rbac))
    no, yes = {"status": {"allowed": False}}, {"status": {"allowed": True}}
    server = Server(yes, create=[yes, no, no, busy()])
    await install._roles_authorized(server.client, rbac)
    assert len(server.audited_requests) == count + 1 + 2, (
        "only those that were not there are asked for again"
    )


def queue(status: str, **spec: str) -> dict[str, Any]:
    conditions = [{"type": "Active", "status": status}] if status else None
    return {"spec": spec, "status": {"conditions": conditions}}


@pytest.mark.requirement("OPS-10")
async def test_both_queues_are_waited_for_until_they_are_active() -> None:
    """Else the first line of the demo is that they are not."""
    cluster_queue, local_queue = queue("True"), queue("True")
    pending = [queue(""), queue("False"), busy(), cluster_queue, queue("")]
    server = Server(get=[*pending, cluster_queue, local_queue])
    await install.queues_active(server.client)
    assert server.audited_requests == ["get"] * 7


async def test_a_queue_that_its_user_stopped_holds_no_one_up() -> None:
    server = Server(get=[queue("False", stopPolicy="Hold")])
    await install.queues_active(server.client)
    assert server.audited_requests == ["get"], "its LocalQueues are stopped, too"


@pytest.mark.usefixtures("impatient")
async def test_a_queue_that_never_gets_active_is_reported() -> None:
    with pytest.raises(CommandError, match="the queue default is active: not within"):
        await install.queues_active(Server(queue("False")).client)
