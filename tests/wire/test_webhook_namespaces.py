"""Webhook configurations and `managedJobsNamespaceSelector` have to select the same namespaces."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from rackgate.api.resources import MUTATING_CONFIGS, VALIDATING_CONFIGS
from rackgate.certificates.issued import IssuedCertificateManager
from rackgate.certificates.registrations import Registrations
from rackgate.kube.client import Client
from rackgate.runtime.namespaces import NamespaceSelector
from rackgate_webhook.service import WebhookService
from rackgate_webhook.settings import CertificateSettings, WebhookSettings
from tests.support.apiserver import FakeApiServer

pytestmark = pytest.mark.requirement("OPS-11")

LABELS = {"rackgate.dev/managed-jobs": "true"}
SELECTOR = NamespaceSelector(match_labels=LABELS)
NAME = "rackgate-mutating"


def register(api: FakeApiServer, *, jobs: dict[str, str], group: str = "batch") -> None:
    """A registration for jobs of namespaces with these labels, and one for pods of all."""
    webhooks: list[dict[str, Any]] = [
        {"name": "jobs", "rules": [{"apiGroups": [group]}], "namespaceSelector": {}},
        {"name": "pods", "rules": [{"apiGroups": [""]}], "namespaceSelector": {}},
    ]
    if jobs:
        webhooks[0]["namespaceSelector"]["matchLabels"] = jobs
    api.put(MUTATING_CONFIGS, {"metadata": {"name": NAME}, "webhooks": webhooks})


async def looked(client: Client, selector: NamespaceSelector | None) -> str:
    registrations = Registrations(client, {NAME: (MUTATING_CONFIGS, VALIDATING_CONFIGS)}, selector)
    await registrations.apply_bundle(lambda _: None)
    return registrations.selector_mismatch


@pytest.mark.parametrize("group", ["batch", "jobset.x-k8s.io", "ray.io"])
async def test_a_registration_that_selects_other_namespaces_is_named(
    api: FakeApiServer, client: Client, group: str
) -> None:
    register(api, jobs={}, group=group)
    assert await looked(client, SELECTOR) == (
        'webhook "jobs" of configuration "rackgate-mutating" has another namespaceSelector than '
        'managedJobsNamespaceSelector, which is {"matchLabels":{"rackgate.dev/managed-jobs":'
        '"true"}}: set webhook, configuration and assigner to the same selector '
        "(see deploy/namespaces)"
    )
    # Without a selector of ours a cluster may have narrowed its webhooks by itself.
    assert await looked(client, None) == ""
    register(api, jobs=LABELS, group=group)
    assert await looked(client, SELECTOR) == ""


@pytest.mark.parametrize(("namespace", "agrees"), [("infra", True), ("rackgate-system", False)])
async def test_a_registration_may_leave_out_the_namespace_of_the_services_by_name(
    api: FakeApiServer, client: Client, namespace: str, agrees: bool
) -> None:
    settings = CertificateSettings(namespace=namespace, configuration_names=[NAME])
    register(api, jobs=LABELS)
    registered = api.get(MUTATING_CONFIGS, NAME, "")
    assert registered is not None
    expression = {"key": "kubernetes.io/metadata.name", "operator": "NotIn"}
    selector = registered["webhooks"][0]["namespaceSelector"]
    selector["matchExpressions"] = [{**expression, "values": ["kube-system", "infra"]}]
    api.put(MUTATING_CONFIGS, registered)
    keeper = IssuedCertificateManager(client, settings, ssl.create_default_context(), SELECTOR)
    await keeper._configurations.apply_bundle(lambda _: None)
    assert (keeper.selector_mismatch == "") is agrees


class Kept:
    """A keeper of certificates with whom all is well."""

    problem = ""

    def __init__(self) -> None:
        self.selector_mismatch = "they differ"


def test_a_new_replica_waits_until_they_agree_and_one_that_was_ready_stays_so() -> None:
    service = WebhookService(WebhookSettings())
    keeper = Kept()
    service._certificate_manager = keeper  # type: ignore[assignment]  # what `missing` asks of a keeper
    assert service.missing() == ["they differ"]
    keeper.selector_mismatch = ""
    assert service.missing() == []
    keeper.selector_mismatch = "they differ"
    assert service.missing() == []
