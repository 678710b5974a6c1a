"""What `rackgate uninstall` prints before and after."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rackgate_cli.uninstall.steps import InstallationSurvey, UninstallResult

_SHOWN: Final = 10


def plan(survey: InstallationSurvey, jobs: str, *, delete_crds: bool) -> list[str]:
    """What will be done, for the user who confirms it."""
    lines = [f"Rackgate in namespace {survey.namespace} will be removed."]
    if not survey.is_active:
        lines.append(
            "Another installation is active in this cluster: it owns jobs, queues and CRDs."
        )
    if survey.running and jobs == "leave":
        lines.append(
            f"{_jobs(survey.running)} running: they continue. Pods that they create later, such as "
            "for a retry, stay gated (--jobs suspend stops these jobs instead)."
        )
    elif survey.running:
        lines.append(
            f"{_jobs(survey.running)} running: they are suspended, and their pods are deleted."
        )
    if survey.waiting:
        lines.append(
            f"{_jobs(survey.waiting)} pending: they get their templates back and stay suspended."
        )
    if survey.gated:
        lines.append(
            f"{_count_text(len(survey.gated), 'pod')} gated: they are released to the scheduler, "
            "without a topology assignment."
        )
    counts = ", ".join(f"{count} {kind}" for kind, count in survey.counts.items() if count)
    if not survey.is_active:
        pass
    elif delete_crds:
        lines.append(f"The CRDs are DELETED with all their objects: {counts or 'none'}.")
    else:
        lines.append(f"CRDs, queues and Workloads stay ({counts or 'none'}).")
    if survey.shared:
        lines.append(
            f"Namespace {survey.namespace} stays: it also contains {_some(survey.shared)}."
        )
    return lines


def outcome(done: UninstallResult, jobs: str) -> list[str]:
    """What was done, and what is left to do."""
    report = done.report
    lines = [f"deleted: {done.deleted} objects of the installation"]
    if done.crds:
        lines.append(f"deleted: {done.crds} CRDs with all their objects")
    released = ", ".join(f"{count} {kind}" for kind, count in sorted(report.released.items()))
    if released:
        lines.append(f"removed: the finalizers of {released}")
    if report.restored:
        lines.append(
            f"suspended, with their original templates: {_jobs(len(report.restored))} "
            f"({_some(sorted(report.restored))}); unsuspend them to run them without Rackgate"
        )
    if done.pods:
        lines.append(
            f"released to the scheduler: {_count_text(len(done.pods), 'pod')} "
            f"({_some(sorted(done.pods))})"
        )
    if report.running:
        lines.append(
            f"still running: {_jobs(len(report.running))} ({_some(sorted(report.running))})"
        )
    if report.gated and jobs == "leave":
        lines.append(
            f"pods that {_jobs(len(report.gated))} of these will create later stay gated; delete "
            f"and resubmit the job if that happens: {_some(sorted(report.gated))}"
        )
    if done.left:
        lines.append("not deleted:")
        lines += [f"  {line}" for line in done.left]
        lines.append("run the command again")
    else:
        lines.append("Rackgate is uninstalled")
    return lines


def _jobs(count: int) -> str:
    return _count_text(count, "job")


def _count_text(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _some(found: Iterable[str]) -> str:
    listed = list(found)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more
