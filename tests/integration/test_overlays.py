"""What kubectl builds of the overlays and components of deploy/: nothing but what they name."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from rackgate.api.names import OSMO_GROUP
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir
from tests.support.elsewhere import kustomized
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

DEPLOY = deploy_dir()
OSMO = DEPLOY / "osmo"
INJECT = "cert-manager.io/inject-ca-from"
VALIDATING = ("ValidatingWebhookConfiguration", "rackgate-validating")
(REGISTRATION,) = install.documents(OSMO / "webhooks.yaml")

Object = dict[str, Any]
Objects = dict[tuple[str, str], Object]
Render = Callable[..., Objects]


@pytest.fixture(scope="module")
def render(playground: Playground, tmp_path_factory: pytest.TempPathFactory) -> Render:
    """What kubectl makes of a base in deploy/ with components, by kind and name; each once."""

    def rendered(*base: str, components: tuple[str, ...] = ()) -> Objects:
        folder = tmp_path_factory.mktemp("overlay")
        found = kustomized(playground, folder, *components, base=base)
        return {(entry["kind"], entry["metadata"]["name"]): entry for entry in found}

    return cache(rendered)


def test_the_overlay_for_cert_manager_changes_nothing_but_the_certificate(render: Render) -> None:
    before, now = render(), render("overlays", "cert-manager")
    added = {name for name in now if name not in before}
    assert {kind for kind, _ in added} == {"Certificate", "Issuer"}
    changed = {name for name in before if now[name] != before[name]}
    assert changed == {
        ("ClusterRole", "rackgate-webhook"),
        ("Role", "rackgate-webhook"),
        ("ConfigMap", "rackgate-webhook"),
        ("MutatingWebhookConfiguration", "rackgate-mutating"),
        VALIDATING,
    }
    for name in sorted(changed):
        if name[0].endswith("WebhookConfiguration"):
            metadata = {**now[name]["metadata"]}
            assert metadata.pop("annotations") == {INJECT: "rackgate-system/rackgate-webhook"}
            assert {**now[name], "metadata": metadata} == before[name]


@pytest.mark.requirement("OSM-19")
@pytest.mark.parametrize("base", [(), ("overlays", "cert-manager")], ids=["base", "cert-manager"])
def test_only_the_component_brings_osmo_and_it_changes_nothing_else(
    render: Render, base: tuple[str, ...]
) -> None:
    before, now = render(*base), render(*base, components=("osmo",))
    assert OSMO_GROUP not in json.dumps(list(before.values()))
    changed = {key for key in before if now[key] != before[key]}
    assert changed == {
        ("Deployment", "rackgate-assigner"),
        ("Deployment", "rackgate-webhook"),
        VALIDATING,
    }
    hooks = before[VALIDATING]["webhooks"]
    added = [hook for hook in now[VALIDATING]["webhooks"] if hook not in hooks]
    assert len(now[VALIDATING]["webhooks"]) == len(hooks) + len(added)
    assert {hook["name"] for hook in added} == {hook["name"] for hook in REGISTRATION["webhooks"]}
    assert all("osmo" in str(entry) for entry in set(now) - set(before))


def test_a_playground_adds_the_webhooks_of_osmo_as_kustomize_does(render: Render) -> None:
    hooks = install.documents(DEPLOY / "webhook")
    merged = install.with_webhooks_of(hooks, OSMO / "webhooks.yaml")
    found = {(entry["kind"], entry["metadata"]["name"]): entry for entry in merged}
    assert len(merged) == len(hooks)
    wanted = {hook["name"]: hook for hook in render(components=("osmo",))[VALIDATING]["webhooks"]}
    assert {hook["name"]: hook for hook in found[VALIDATING]["webhooks"]} == wanted
    assert "osmo" not in json.dumps(hooks)
