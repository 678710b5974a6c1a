"""`--help` of the services has every setting; the published schemas accept what they accept."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import yaml

from rackgate.runtime.service import run_service
from rackgate.runtime.settings import BaseServiceSettings
from rackgate.runtime.settings_table import described
from rackgate_cli.locations import deploy_dir
from tests.support.reference import REFERENCE
from tests.support.reference.settings import SERVICES

MODELS = dict(SERVICES)


def schema(kind: str) -> Any:
    found = json.loads((REFERENCE / "schemas" / f"{kind}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


def kind_of(model: type[BaseServiceSettings]) -> str:
    return str(model.model_fields["kind"].default)


@pytest.mark.parametrize("service", MODELS)
def test_help_has_every_setting_with_default_and_meaning(
    service: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def serve(*_: object) -> None:
        raise AssertionError("help starts no service")

    with pytest.raises(SystemExit) as ended:
        run_service(service, serve, settings=MODELS[service], argv=["--help"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.replace("`", "").split())
    for row in described(MODELS[service]):
        path, default = row.path.strip("`"), row.default.replace("`", "").replace("<br>", ", ")
        said = f"{path} ("
        assert said in shown
        after = shown.partition(said)[2]
        assert " ".join(row.meaning.replace("`", "").split()) in after
        if default and default != "required":
            assert f"default {default})" in after
    assert max(map(len, shown.split())) < 200
    assert f"RACKGATE_{service.upper()}_LEADER_ELECTION__LEASE_DURATION" in shown


@pytest.mark.parametrize("model", MODELS.values())
def test_a_schema_accepts_what_the_service_accepts(model: type[BaseServiceSettings]) -> None:
    kind = kind_of(model)
    head = {"apiVersion": "config.rackgate.dev/v1alpha1", "kind": kind}
    check = schema(kind)
    check.validate({**head, "featureGates": {"ElasticJobsViaWorkloadSlices": True}})
    check.validate({**head, "leaderElection": {"leaseDuration": 4, "namespace": "mine"}})
    wrong: list[dict[str, Any]] = [
        {"kind": kind},
        {**head, "kind": "OtherConfiguration"},
        {**head, "leaderElection": {"leaseDuration": 0}},
        {**head, "leaderElection": {"leaseduration": 4}},
        {**head, "featureGates": {"ElasticJobsViaWorkloadSlices": "yes"}},
        {**head, "unknown": 1},
    ]
    for document in wrong:
        with pytest.raises(jsonschema.ValidationError):
            check.validate(document)


def test_the_configurations_of_the_deployment_fit_their_schemas() -> None:
    kinds = {kind_of(model) for model in MODELS.values()}
    seen = set()
    for path in sorted(deploy_dir().rglob("*.yaml")):
        if {"controlplane", "helm"} & set(path.parts):  # templates are no YAML
            continue
        for document in yaml.safe_load_all(path.read_text()):
            if not isinstance(document, dict) or document.get("kind") != "ConfigMap":
                continue
            for text in (document.get("data") or {}).values():
                inner = yaml.safe_load(text)
                if isinstance(inner, dict) and inner.get("kind") in kinds:
                    schema(inner["kind"]).validate(inner)
                    seen.add(inner["kind"])
    assert seen == kinds
