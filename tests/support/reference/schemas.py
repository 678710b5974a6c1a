"""JSON schemas of configuration files and of the JSON that `rackgate get` prints, from the code."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from rackgate.features import GATES
from rackgate_cli.get.topology import TopologyReport
from rackgate_cli.queues.model import QueueReport, WorkloadReport
from tests.support.reference.settings import SERVICES

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, str]:
    """Text of each schema, by kind of the document."""
    found: dict[str, dict[str, Any]] = {}
    for _, model in SERVICES:
        kind = model.model_fields["kind"].default
        schema: dict[str, Any] = model.model_json_schema(by_alias=True)
        schema = {
            "$schema": _DIALECT,
            **schema,
            "title": kind,
            "required": sorted({*schema.get("required", ()), "apiVersion", "kind"}),
        }
        schema["properties"]["featureGates"] |= {
            # Gates of Kueue are accepted as well, if they ask for what Rackgate does anyway.
            "properties": {
                gate.name: {
                    "type": "boolean",
                    "default": gate.default,
                    "description": gate.purpose,
                }
                for gate in GATES
            },
        }
        found[kind] = schema
    for report in (QueueReport, WorkloadReport, TopologyReport):
        found[report.__name__] = {"$schema": _DIALECT, **msgspec.json.schema(report)}
    return {
        name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for name, schema in found.items()
    }
