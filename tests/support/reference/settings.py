"""The page of settings, from the models that the services read their configuration with."""

from __future__ import annotations

from typing import Final

from rackgate.runtime.settings import BaseServiceSettings
from rackgate.runtime.settings_table import described
from rackgate_assigner.settings import AssignerSettings
from rackgate_console.settings import ConsoleSettings
from rackgate_ungater.settings import UngaterConfiguration
from rackgate_webhook.settings import WebhookSettings
from tests.support.reference import page, table

SERVICES: Final[tuple[tuple[str, type[BaseServiceSettings]], ...]] = (
    ("webhook", WebhookSettings),
    ("assigner", AssignerSettings),
    ("ungater", UngaterConfiguration),
    ("console", ConsoleSettings),
)
PURPOSE: Final = (
    "This page lists every setting of the webhook, the assigner, the ungater and the console."
)
INTRODUCTION: Final = """\
A service reads its settings from three places. A later one overrides an earlier one:

1. The YAML file that `--config FILE` names. It starts with `apiVersion` and `kind`.
2. Environment variables. A name is `RACKGATE_`, the service, and the path of the field in snake case, in
   capitals, joined by `__`: `RACKGATE_ASSIGNER_LEADER_ELECTION__LEASE_DURATION=4`.
3. The flag `--set`, once for each field: `--set leaderElection.leaseDuration=4`.

Values of variables and flags are YAML. A service does not start with an unknown key, an unknown feature
gate or a value out of range. It reports every such fault with the path of the field. An environment variable
that matches no field is ignored.

```yaml
apiVersion: config.rackgate.dev/v1alpha1
kind: AssignerConfiguration
leaderElection:
  leaseDuration: 15
featureGates:
  ElasticJobsViaWorkloadSlices: true
```

`rackgate-assigner --help` prints the same list, and each service that of its own settings. The folder
[schemas](schemas) has a JSON schema of each file, for editors:

```yaml
# yaml-language-server: $schema=https://example.com/AssignerConfiguration.json
apiVersion: config.rackgate.dev/v1alpha1
kind: AssignerConfiguration
```

All durations are numbers of seconds. [Feature gates](feature-gates.md) have a page of their own."""


def text() -> str:
    """The page."""
    common = {row.path: row for row in described(BaseServiceSettings)}
    head = ("Field", "Type", "Default", "Meaning")
    blocks = [
        f"## All services\n\n{table(head, [r for k, r in common.items() if k != '`kind`'])}",
    ]
    for service, model in SERVICES:
        own = [row for row in described(model) if row != common.get(row.path)]
        kind = model.model_fields["kind"].default
        blocks.append(
            f"## {service.capitalize()}\n\n`kind: {kind}`. Variables begin with"
            f" `RACKGATE_{service.upper()}_`.\n\n"
            + table(head, [row for row in own if row[0] != "`kind`"])
        )
    return page("Settings", PURPOSE, INTRODUCTION, *blocks)
