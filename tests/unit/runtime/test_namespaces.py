"""`managedJobsNamespaceSelector`: what it selects, and what is wrong with it, in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from rackgate.runtime.namespaces import NamespaceSelector
from rackgate.runtime.settings import SettingsError, load_settings
from rackgate_assigner.settings import AssignerSettings
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir
from rackgate_webhook.settings import WebhookSettings

pytestmark = pytest.mark.requirement("OPS-11")

SERVICES = [("assigner", AssignerSettings), ("webhook", WebhookSettings)]
FIELD = "managedJobsNamespaceSelector"

AMONG = {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}
OTHERS = {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}


def selector(found: Mapping[str, Any]) -> NamespaceSelector:
    return NamespaceSelector.model_validate(found)


@pytest.mark.parametrize(
    ("found", "labels", "selected"),
    [
        ({}, {}, True),
        ({"matchLabels": {"team": "a"}}, {"team": "a", "x": "y"}, True),
        ({"matchLabels": {"team": "a"}}, {"team": "b"}, False),
        ({"matchLabels": {"team": ""}}, {}, False),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, {"team": ""}, True),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, {}, False),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, {}, True),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, {"team": "a"}, False),
        (AMONG, {"team": "b"}, True),
        (AMONG, {"team": "c"}, False),
        (AMONG, {}, False),
        (OTHERS, {"team": "a"}, False),
        (OTHERS, {}, True),
        ({"matchLabels": {"x": "y"}, **OTHERS}, {"x": "y", "team": "a"}, False),
    ],
)
def test_a_namespace_is_selected_as_by_kubernetes(
    found: Mapping[str, Any], labels: Mapping[str, str], selected: bool
) -> None:
    assert selector(found).selects(labels) is selected


@pytest.mark.parametrize(("service", "settings"), SERVICES)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{matchLabel: {a: b}}", 'unknown key "matchLabel" (did you mean "matchLabels"?)'),
        ("{matchLabels: {a b: c}}", 'matchLabels: "a b" is not a label key; expected PREFIX/NAME'),
        ("{matchLabels: {a: 'b c'}}", 'matchLabels: "b c" is not a label value; at most 63'),
        (
            "{matchExpressions: [{key: a, operator: In}]}",
            "matchExpressions.0: operator In needs at least one of values (key a)",
        ),
        (
            "{matchExpressions: [{key: a, operator: Exists, values: [b]}]}",
            "matchExpressions.0: operator Exists takes no values (key a)",
        ),
        (
            "{matchExpressions: [{key: a, operator: Gt, values: ['1']}]}",
            "matchExpressions.0.operator: input should be 'In', 'NotIn', 'Exists' or",
        ),
    ],
)
def test_a_wrong_selector_is_rejected_with_its_field_its_value_and_what_is_expected(
    service: str, settings: type[AssignerSettings | WebhookSettings], text: str, says: str
) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(settings, service=service, flags=[f"{FIELD}={text}"])
    (line,) = error.value.lines
    assert line.startswith(FIELD)
    assert says in line


# The component that tells services, webhooks and policies alike.

NAMESPACES = deploy_dir() / "namespaces"


@pytest.mark.parametrize(("service", "settings"), SERVICES)
def test_the_component_tells_each_service_the_selector_of_the_registrations(
    service: str, settings: type[AssignerSettings | WebhookSettings]
) -> None:
    (patch,) = install.documents(NAMESPACES / f"{service}.yaml")
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    environ = {entry["name"]: entry["value"] for entry in container["env"]}
    found = load_settings(settings, service=service, environ=environ)
    told = found.managed_jobs_namespace_selector
    assert not told.everything
    text = (NAMESPACES / "kustomization.yaml").read_text()
    labels = json.dumps(told.match_labels).replace('"', "").replace(": true", ': "true"')
    assert f"value: {labels}" in text


NAME = "kubernetes.io/metadata.name"
SYSTEM = ("kube-system", "rackgate-system")


def by_name(operator: str, *values: str) -> dict[str, Any]:
    return {"key": NAME, "operator": operator, "values": list(values)}


def test_a_registration_may_leave_out_namespaces_of_the_system_beside_the_selector() -> None:
    told = selector({"matchLabels": {"team": "a"}})
    system = by_name("NotIn", *SYSTEM)

    def differs(one: NamespaceSelector, found: Mapping[str, Any]) -> bool:
        return one.differs(found, SYSTEM)

    assert not differs(told, {"matchLabels": {"team": "a"}, "matchExpressions": [system]})
    assert differs(told, {"matchExpressions": [system]})
    assert differs(told, {"matchLabels": {"team": "b"}, "matchExpressions": [system]})
    more = {"key": "x", "operator": "In", "values": ["2", "1"]}
    assert differs(told, {"matchLabels": {"team": "a"}, "matchExpressions": [system, more]})
    both = selector(
        {"matchLabels": {"team": "a"}, "matchExpressions": [{**more, "values": ["1", "2"]}]}
    )
    assert not differs(both, {"matchLabels": {"team": "a"}, "matchExpressions": [more, system]})
    assert differs(both, {"matchLabels": {"team": "a"}, "matchExpressions": [{"key": "x"}]})
    assert str(told) == '{"matchLabels":{"team":"a"}}'


@pytest.mark.parametrize(
    ("own", "registered", "differs"),
    [
        ([by_name("In", "team-a")], [by_name("In", "team-a")], False),
        ([by_name("In", "team-a")], [by_name("In", "team-a"), by_name("NotIn", *SYSTEM)], False),
        ([by_name("In", "team-a")], [by_name("NotIn", *SYSTEM)], True),
        ([by_name("In", "team-a")], [by_name("In", "team-b")], True),
        ([], [by_name("In", "team-a")], True),
        ([], [by_name("NotIn", "team-b", *SYSTEM)], True),
        ([], [by_name("NotIn", "kube-system")], False),
        ([by_name("NotIn", "team-b")], [by_name("NotIn", "team-b", *SYSTEM)], False),
        ([by_name("NotIn", "team-b")], [by_name("NotIn", *SYSTEM)], True),
        ([by_name("NotIn", *SYSTEM)], [], False),
    ],
)
def test_names_of_other_namespaces_are_compared_like_any_label(
    own: list[Any], registered: list[Any], differs: bool
) -> None:
    labels = {"matchLabels": {"managed": "true"}}
    told = selector({**labels, "matchExpressions": own})
    assert told.differs({**labels, "matchExpressions": registered}, SYSTEM) is differs
    read = NamespaceSelector.of({"matchExpressions": registered}, SYSTEM)
    asked = {expression["operator"]: expression for expression in registered}
    named = asked.get("In", {"values": ["team-a"]})["values"]
    for name in ("team-a", "team-b"):
        left_out = name in asked.get("NotIn", {"values": []})["values"]
        selected = not left_out and ("In" not in asked or name in named)
        assert read.selects({NAME: name}) is selected
    assert read.selects({NAME: "kube-system"}) is ("In" not in asked)


def test_nothing_but_jobs_of_other_namespaces_is_let_go_by_the_component() -> None:
    """Guards of pods, children and Workloads stay on everywhere."""
    text = (NAMESPACES / "kustomization.yaml").read_text()
    for kept in (
        "rackgate-pods",
        "rackgate-parts",
        "rackgate-workloads",
        "pods.mutate",
        "workloads.",
    ):
        assert kept not in text
