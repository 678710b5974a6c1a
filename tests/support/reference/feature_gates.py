"""The page of feature gates, from their table."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Final

from rackgate.features import GATES, Features
from rackgate.kueue_gates import KUEUE_VERSION
from tests.support.reference import ROOT, page, table

SERVICES: Final = ("webhook", "assigner", "ungater")
PURPOSE: Final = (
    "This page lists the feature gates of Rackgate, their defaults and the services that read them."
)
INTRODUCTION: Final = """\
You set gates in the configuration of a service:

```yaml
apiVersion: config.rackgate.dev/v1alpha1
kind: AssignerConfiguration
featureGates:
  TASBalancedPlacement: true
```

A service does not start with an unknown gate, and lists those that it knows. Give a gate the same value in every service that reads it.
`rackgate place` accepts the gates of placement in the field `gates` of a
[scenario](scenario-format.md).

Gates with the prefix `Rackgate` exist in Rackgate only. [ADR 13](../design/adr/0013-gates-of-ours.md) gives the
reasons and figures for those that change placement. The stages are alpha and beta, as in Kubernetes."""

KUEUE: Final = f"""\
## Gates of Kueue

The table above has the gates of Kueue that are switches in Rackgate as well. A service accepts any other gate of
Kueue {KUEUE_VERSION} if it asks for what Rackgate does anyway, and logs `feature_gate_without_effect`. With another
value it does not start, and the message names the gate. So you can copy the `featureGates` of Kueue, and the service
says which of them to remove. [Compatibility with Kueue](compatibility.md#feature-gates) lists all gates of Kueue.

Defaults may differ: `ElasticJobsViaWorkloadSlices` is on in Kueue and off in Rackgate."""


def services_of(attribute: str) -> list[str]:
    """The services whose sources read a gate."""
    reads = re.compile(rf"\.{attribute}\b")
    return [
        service
        for service in SERVICES
        if any(
            reads.search(path.read_text()) for path in (ROOT / "services" / service).rglob("*.py")
        )
    ]


def text() -> str:
    """The page."""
    rows = [
        (
            f"`{gate.name}`",
            "on" if gate.default else "off",
            gate.stage,
            ", ".join(services_of(entry.name)),
            gate.purpose,
        )
        for gate, entry in zip(GATES, fields(Features), strict=True)
    ]
    costs = [
        f"## Cost of `{gate.name}`\n\n{gate.cost}\n\nThe service logs this when it starts with the gate on."
        for gate in GATES
        if gate.cost
    ]
    head = ("Gate", "Default", "Stage", "Services", "Meaning")
    return page(
        "Feature gates",
        PURPOSE,
        INTRODUCTION,
        table(head, rows),
        *costs,
        KUEUE,
    )
