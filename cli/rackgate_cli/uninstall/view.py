"""What `rackgate uninstall` says before and after. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rackgate_cli.uninstall.steps import InstallationSurvey, UninstallResult

_SHOWN: Final = 10


def plan(survey: InstallationSurvey, jobs: str, *, delete_crds: bool) -> list[str]:
    """What will be done, for whom who is asked."""
    lines = [f"Rackgate in namespace {survey.namespace} will be removed."]
    if not survey.is_active:
        lines.append(
            "Another installation acts in this cluster: jobs, queues and kinds are its own."
        )
    if survey.running and jobs == "leave":
        lines.append(
            f"{_jobs(survey.running)} running: they go on. Pods that they make later, such as for "
            "a retry, stay gated (--jobs suspend stops these jobs instead)."
        )
    elif survey.running:
        lines.append(
            f"{_jobs(survey.running)} running: they are suspended, and their pods are deleted."
        )
    if survey.waiting:
        lines.append(
            f"{_jobs(survey.waiting)} waiting: they get their templates back and stay suspended."
        )
    if survey.gated:
        lines.append(
            f"{_count_text(len(survey.gated), 'pod')} gated: they are released to the scheduler, "
            "without a place of their own."
        )
    counts = ", ".join(f"{count} {kind}" for kind, count in survey.counts.items() if count)
    if not survey.is_active:
        pass
    elif delete_crds:
        lines.append(f"The kinds are DELETED with all their objects: {counts or 'there are none'}.")
    else:
        lines.append(f"Kinds, queues and Workloads stay ({counts or 'there are none'}).")
    if survey.shared:
        lines.append(f"Namespace {survey.namespace} stays: it has {_some(survey.shared)}.")
    return lines


def outcome(done: UninstallResult, jobs: str) -> list[str]:
    """What was done, and what the operator has to know or do."""
    report = done.report
    lines = [f"deleted: {done.deleted} objects of the installation"]
    if done.crds:
        lines.append(f"deleted: {done.crds} kinds with all their objects")
    released = ", ".join(f"{count} {kind}" for kind, count in sorted(report.released.items()))
    if released:
        lines.append(f"given back: the finalizers of {released}")
    if report.restored:
        lines.append(
            f"suspended, as their users wrote them: {_jobs(len(report.restored))} "
            f"({_some(sorted(report.restored))}); unsuspend them to run them without Rackgate"
        )
    if done.pods:
        lines.append(
            f"released to the scheduler: {_count_text(len(done.pods), 'pod')} "
            f"({_some(sorted(done.pods))})"
        )
    if report.running:
        lines.append(f"run on: {_jobs(len(report.running))} ({_some(sorted(report.running))})")
    if report.gated and jobs == "leave":
        lines.append(
            f"pods that {_jobs(len(report.gated))} of these will make later stay gated; delete the "
            f"job and submit it anew if that happens: {_some(sorted(report.gated))}"
        )
    if done.left:
        lines.append("left:")
        lines += [f"  {line}" for line in done.left]
        lines.append("run the same command again")
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
