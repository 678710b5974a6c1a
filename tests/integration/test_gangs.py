"""The Workload of gangs before a real API server: what it takes and refuses, and where."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import pytest

from rackgate.api import resources as kinds
from rackgate_cli.controlplane.state import StateFolder
from rackgate_cli.locations import deploy_dir
from tests.support.cluster import Cluster
from tests.support.gang_cases import Case, invalid_cases, rev1_specs, rev_n_specs
from tests.support.playground import Playground

GANGS: Final = str(deploy_dir() / "gangs")
CRD: Final = kinds.GANG_WORKLOADS.full_name
DRY_RUN: Final = "?dryRun=All&fieldValidation=Strict"
Answer = tuple[int, dict[str, Any]]


@pytest.fixture(scope="module")
def gangs(playground: Playground) -> Iterator[Playground]:
    """The playground with the component of gangs."""
    playground.run("kubectl", "apply", "--server-side", "-k", GANGS)
    playground.run("kubectl", "wait", "--for=condition=Established", "--timeout=60s", f"crd/{CRD}")
    yield playground
    playground.run("kubectl", "delete", "-k", GANGS)


def manifest(spec: Case, name: str = "w") -> Case:
    head = {"apiVersion": kinds.GANG_WORKLOADS.api_version, "kind": "Workload"}
    return {**head, "metadata": {"name": name}, "spec": spec}


class Server:
    """The API server with its whole answers: a client of ours keeps only the message."""

    def __init__(self, playground: Playground) -> None:
        pki = StateFolder(playground.state).pki
        self._context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._context.load_cert_chain(pki / "admin-client.crt", pki / "admin-client.key")
        self._base = playground.server

    async def send(self, method: str, path: str, body: Case) -> Answer:
        """Status and body of the answer."""
        return await asyncio.to_thread(self._send, method, path, body)

    def _send(self, method: str, path: str, body: Case) -> Answer:
        request = urllib.request.Request(  # noqa: S310 - the playground's https address
            self._base + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=60) as answer:  # noqa: S310
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


@pytest.mark.requirement("GNG-01")
async def test_the_kind_is_served_beside_kueues(gangs: Playground, cluster: Cluster) -> None:
    for kind in (kinds.GANG_WORKLOADS, kinds.WORKLOADS):
        found = json.loads(await cluster.client.get(kind.path(cluster.namespace)))
        assert found["items"] == []
    await cluster.create(kinds.GANG_WORKLOADS, manifest({}))
    where = ("-n", cluster.namespace, "-o", "name")
    assert gangs.run("kubectl", "get", "workloads", *where).split() == []
    for name in ("swl", "schedworkload", "schedworkloads"):
        assert gangs.run("kubectl", "get", name, *where).split() == [
            f"workload.{kinds.GANG_WORKLOADS.group}/w"
        ]
    head = gangs.run("kubectl", "get", "swl", "-n", cluster.namespace).splitlines()[0]
    assert head.split("  ")[0].strip() == "NAME"
    assert [word for word in ("PHASE", "MEMBERS", "WAITING FOR", "AGE") if word not in head] == []


async def test_every_valid_spec_is_stored_as_it_was_written(
    gangs: Playground, cluster: Cluster
) -> None:
    server = Server(gangs)
    path = kinds.GANG_WORKLOADS.path(cluster.namespace) + DRY_RUN
    specs = {**dict(rev1_specs()), **dict(rev_n_specs())}
    assert len(specs) > 80
    for name, spec in specs.items():
        status, answer = await server.send("POST", path, manifest(spec))
        assert (status, answer.get("message")) == (201, None), name
        assert answer["spec"] == spec, name


@pytest.mark.requirement("GNG-33", "GNG-39", "GNG-40")
async def test_every_invalid_spec_is_refused_with_its_path_and_reason(
    gangs: Playground, cluster: Cluster
) -> None:
    server = Server(gangs)
    path = kinds.GANG_WORKLOADS.path(cluster.namespace)
    cases = invalid_cases("schema", "rule")
    assert len(cases) == 51
    for name, case in cases.items():
        if "old" in case:
            old = await cluster.create(kinds.GANG_WORKLOADS, manifest(case["old"], name))
            body = {**old, "spec": case["spec"]}
            status, answer = await server.send("PUT", f"{path}/{name}{DRY_RUN}", body)
        else:
            status, answer = await server.send("POST", path + DRY_RUN, manifest(case["spec"]))
        assert status == 422, name
        causes = [(cause["field"], cause["reason"]) for cause in answer["details"]["causes"]]
        assert (case["path"], case["serverReason"]) in causes, name


async def test_unknown_fields_are_refused_with_strict_validation_and_the_rest_is_for_others(
    gangs: Playground, cluster: Cluster
) -> None:
    server = Server(gangs)
    path = kinds.GANG_WORKLOADS.path(cluster.namespace) + DRY_RUN
    for case in invalid_cases("strict").values():
        status, answer = await server.send("POST", path, manifest(case["spec"]))
        assert (status, answer["reason"]) == (400, "BadRequest")
        assert f'unknown field "{case["path"]}"' in answer["message"]
    # The schema and its rules cannot tell: Rackgate's own checks do.
    for name, case in invalid_cases("webhook", "condition").items():
        status, answer = await server.send("POST", path, manifest(case["spec"]))
        assert status == 201, (name, answer.get("message"))
