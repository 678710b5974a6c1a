"""The page of compatibility: what Rackgate does with each name of Kueue."""

from __future__ import annotations

from typing import Final

from rackgate.features import GATES
from rackgate.kueue_gates import KUEUE_GATES, KUEUE_VERSION, KueueGate
from rackgate_cli.kueue_config.table import SETTINGS, SUBTREE, Support
from rackgate_cli.migrate.compatibility import DIFFERS, FIELDS, KEYS, SAME
from tests.support.kueue_names import kueue_names
from tests.support.reference import page, table

PURPOSE: Final = (
    f"This page lists every field, label, annotation, feature gate and setting of Kueue {KUEUE_VERSION}, and what"
    " Rackgate does with it."
)
INTRODUCTION: Final = """\
Nothing is ignored silently. What has no effect is named in these places:

- The webhook warns about it when you create or change the object. `kubectl` prints the warning.
- Without a queue label the webhook is not called. Then a policy in the API server warns about keys of Kueue on
  a Job, JobSet, RayCluster, RayJob, CronJob or Pod, or on an object of another kind that Kueue can manage, for
  example about a misspelled queue label.
- A policy warns about the queue label on [other kinds](../tasks/migrate-from-kueue.md#what-works-in-another-way). It
  can [reject them](../tasks/configure.md#reject-objects-that-are-not-managed) instead.
- The condition [`UnsupportedFields`](conditions-and-reasons.md) of the Workload names it as long as it is there.
- The Event [`UnsupportedField`](events.md#administration) names it in objects that exist, for example after a
  [migration](../tasks/migrate-from-kueue.md).
- `rackgate explain -f` names it before you submit a job, and `rackgate explain NAME` names it afterwards.

| Word | Meaning |
|---|---|
| same | Rackgate does what Kueue does |
| better | The same, and more |
| differs | The note says how |
| behind a gate | The same, if you enable the feature gate that is named. It is off by default |
| no effect, warned | The field is stored. The note says what happens instead |
| rejected | The object is not accepted |
| not written | Kueue writes this status, Rackgate does not |
| left alone | Kueue wrote it. Rackgate does not remove it |
| not needed | There is nothing to set |
| not yet | There is no such setting. The note says what happens instead |

The API server serves `v1beta2` and `v1beta1` of all kinds, and stores `v1beta2`. The webhook converts ClusterQueues,
LocalQueues and Workloads. The tables have the fields of `v1beta2`. `v1beta1` has the same fields, but for these:

| `v1beta1` | `v1beta2` |
|---|---|
| ClusterQueue: `spec.cohort` | `spec.cohortName` |
| ClusterQueue: `spec.admissionChecks` | `spec.admissionChecksStrategy`, each rule with `onFlavors: []` |
| ClusterQueue: `Borrow` and `Preempt` in `spec.flavorFungibility` | `MayStopSearch`, also when read in `v1beta1` |
| LocalQueue: `status.flavorUsage` | `status.flavorsUsage` |
| Workload: `spec.priorityClassName`, `spec.priorityClassSource` | `spec.priorityClassRef`. Without a source, a PriorityClass |
| Workload: `status.accumulatedPastExexcutionTimeSeconds` | `status.accumulatedPastExecutionTimeSeconds` |
| Workload: `domains` of a `topologyAssignment` | `slices`, in the same order |
| ClusterQueue: `status.pendingWorkloadsStatus`; LocalQueue: `status.flavors` | None. Rackgate does not serve them, see the [positions of pending Workloads](api.md#positions-of-pending-workloads) |

Fields that Kueue has in `v1beta2` only can be read and written in `v1beta1` under their own name, so a patch or a
replacement through `v1beta1` loses nothing. A typed client that replaces a whole object drops fields that it does not
know. [ADR 67](../design/adr/0067-conversion-of-v1beta1.md) has the details."""
KEYS_TEXT: Final = """\
*Job* stands for Jobs, JobSets, RayClusters and RayJobs, *template* for their pod templates. The webhook also warns about
keys of `kueue.x-k8s.io` that are not in this table, and suggests the key that you may have meant."""
GATES_TEXT: Final = """\
A gate that is *a switch* has the same meaning in Rackgate. Of the others a service accepts only the
value in the table, and logs `feature_gate_without_effect`; with another value it does not start, and the message
names the gate. [Feature gates](feature-gates.md) describes the switches, and the gates that Kueue does not have."""
CONFIGURATION_TEXT: Final = """\
Rackgate does not read the configuration of Kueue: a service does not start with a file of
`config.kueue.x-k8s.io`, or with a key that it does not know. [`rackgate kueue-config`](cli.md) translates it, and
names what it cannot translate. [Settings](settings.md) describes the settings in the last column."""


def _fixed(gate: KueueGate) -> tuple[str, str, str]:
    if gate.replaced_by:
        return DIFFERS, "none", f"Set `{gate.replaced_by}`: {gate.note}"
    if gate.behaves is None:
        return Support.NOT_NEEDED, "any", gate.note
    return (SAME, "true", gate.note) if gate.behaves else (Support.NOT_YET, "false", gate.note)


def gate_rows() -> list[tuple[str, ...]]:
    """Every feature gate of Kueue: name, what Rackgate does, accepted value, note."""
    fixed = [(f"`{name}`", *_fixed(gate)) for name, gate in KUEUE_GATES.items()]
    switches = [
        (
            f"`{gate.name}`",
            str(SAME),
            "any",
            f"A switch, {'on' if gate.default else 'off'} by default",
        )
        for gate in GATES
        if gate.name in kueue_names("gates")
    ]
    return sorted((*fixed, *switches), key=lambda row: row[0].strip("`"))


def _fields_table(kind: str) -> str:
    rows = [(f"`{row.name.removesuffix(SUBTREE)}`", row.word, row.note) for row in FIELDS[kind]]
    return f"## {kind}\n\n{table(('Field', 'Rackgate', 'Note'), rows)}"


def _setting(text: str) -> str:
    service, _, path = text.partition(":")
    return f"{service} `{path}`"


def text() -> str:
    """The page."""
    keys = [(f"`{row.name}`", place, row.word, row.note) for place, row in KEYS]
    settings = [
        (
            f"`{row.name.removesuffix(SUBTREE)}`",
            row.support,
            row.note,
            "<br>".join(_setting(one) for one in row.settings),
        )
        for row in SETTINGS
    ]
    head = ("Field of Kueue", "Rackgate", "Note", "Settings of Rackgate")
    return page(
        "Compatibility with Kueue",
        PURPOSE,
        INTRODUCTION,
        *(_fields_table(kind) for kind in FIELDS),
        f"## Labels, annotations, gates and finalizers\n\n{KEYS_TEXT}",
        table(("Key", "Object", "Rackgate", "Note"), keys),
        f"## Feature gates\n\n{GATES_TEXT}",
        table(("Gate of Kueue", "Rackgate", "Accepted value", "Note"), gate_rows()),
        f"## Configuration\n\n{CONFIGURATION_TEXT}",
        table(head, settings),
    )
