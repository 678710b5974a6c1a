"""`rackgate hold`, `resume`, `requeue`, `cancel` and `logs`: what a user does to jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from rackgate_cli import completion
from rackgate_cli.cluster import interruptible
from rackgate_cli.confirming import confirmed
from rackgate_cli.controlplane.binaries.versions import COMPONENTS, OPERATORS, SERVICES
from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.verbs import add_namespace, add_target, add_verb, whole_number

if TYPE_CHECKING:
    from rackgate_cli.jobs.actions import JobActions
    from rackgate_cli.jobs.names import JobName
    from rackgate_cli.verbs import Subparsers

_EXIT_CODES: Final = {
    0: "done",
    1: "no such job, a right is missing, or the cluster does not answer",
    2: "the command line or the kubeconfig is wrong",
}
_JOBS: Final = "NAME, job/NAME, jobset/NAME, raycluster/NAME, rayjob/NAME or workload/NAME"
DEFAULT_TIMEOUT_S: Final = 300
MAX_TAIL: Final = 1_000_000
MAX_RANK: Final = 1_000_000


def add_parser(subparsers: Subparsers) -> None:
    """Add the verbs for jobs."""
    hold = add_verb(
        subparsers,
        "hold",
        hold_jobs,
        summary="stop a job and keep it from being admitted",
        description="Sets spec.active of the job's Workload to false. The job gives up its "
        "admission: its pods are stopped and its quota is released. It stays held until "
        "`rackgate resume`.",
        examples=("rackgate hold train -n team-a", "rackgate hold job/train jobset/eval"),
        exit_codes=_EXIT_CODES,
    )
    resume = add_verb(
        subparsers,
        "resume",
        resume_jobs,
        summary="queue a job again that is held or was deactivated",
        description="Sets spec.active of the job's Workload to true. The job is queued again.",
        examples=("rackgate resume train -n team-a", "rackgate resume jobset/eval"),
        exit_codes=_EXIT_CODES,
    )
    requeue = add_verb(
        subparsers,
        "requeue",
        requeue_jobs,
        summary="let a job give up its admission and wait in its queue again",
        description="Holds the job, waits until its pods are gone and its quota is released, and "
        "resumes it. It keeps its priority and its age, so it may be admitted again at once. If "
        "the command is interrupted or times out, the job stays held, and `rackgate resume` "
        "queues it again.",
        examples=(
            "rackgate requeue train -n team-a",
            "rackgate requeue raycluster/ray --timeout 600",
        ),
        exit_codes=_EXIT_CODES,
    )
    requeue.add_argument(
        "--timeout",
        type=whole_number(1, 86400),
        default=DEFAULT_TIMEOUT_S,
        metavar="SECONDS",
        help="how long to wait until the job has stopped (default %(default)s)",
    )
    cancel = add_verb(
        subparsers,
        "cancel",
        cancel_jobs,
        summary="delete a job",
        description="Deletes a Job, JobSet, RayCluster or RayJob with its pods, in the background. "
        "Asks first.",
        examples=("rackgate cancel job/train -n team-a", "rackgate cancel train --yes"),
        exit_codes=_EXIT_CODES,
    )
    cancel.add_argument("--yes", action="store_true", help="do not ask")
    for parser in (hold, resume, requeue, cancel):
        _add_jobs(parser, nargs="+")
    _add_logs(subparsers)


def _add_jobs(parser: argparse.ArgumentParser, *, nargs: str | None) -> None:
    names = parser.add_argument("jobs", metavar="JOB", nargs=nargs, help=_JOBS)
    completion.set_completer(names, completion.jobs)
    completion.set_completer(add_namespace(parser), completion.namespaces)
    add_target(parser)


def _add_logs(subparsers: Subparsers) -> None:
    logs = add_verb(
        subparsers,
        "logs",
        show_logs,
        summary="print the logs of a job's pods, or of a playground's component",
        description="Prints the logs of all pods of a job. Each line starts with the rank of its "
        "pod, or with the name of the pod if it has none; the PodSet comes first if the job has "
        "several. The names of the playground's services and components (assigner, etcd, "
        "webhook-0) mean these: their logs are files of the playground. A job of such a name is "
        "job/NAME.",
        examples=(
            "rackgate logs train -n team-a",
            "rackgate logs jobset/eval -f --tail 10 --rank 0",
            "rackgate logs assigner --follow            # of a playground",
        ),
        exit_codes=_EXIT_CODES,
    )
    _add_jobs(logs, nargs=None)
    logs.add_argument(
        "-f", "--follow", action="store_true", help="keep printing, also of pods that start later"
    )
    logs.add_argument(
        "--tail",
        type=whole_number(0, MAX_TAIL),
        metavar="N",
        help="only the last N lines of each pod",
    )
    logs.add_argument(
        "--rank",
        type=whole_number(0, MAX_RANK),
        action="append",
        metavar="N",
        help="only of pods with this rank; may be repeated",
    )
    logs.add_argument("-c", "--container", metavar="NAME", help="default: the first container")


def hold_jobs(arguments: argparse.Namespace) -> int:
    """Hold jobs; return the exit code."""
    return _each(arguments, lambda actions, job: actions.hold(job))


def resume_jobs(arguments: argparse.Namespace) -> int:
    """Resume jobs; return the exit code."""
    return _each(arguments, lambda actions, job: actions.resume(job))


def requeue_jobs(arguments: argparse.Namespace) -> int:
    """Requeue jobs; return the exit code."""
    return _each(arguments, lambda actions, job: actions.requeue(job, arguments.timeout))


def cancel_jobs(arguments: argparse.Namespace) -> int:
    """Delete jobs; return the exit code."""

    async def cancel(actions: JobActions, job: JobName) -> None:
        name, uid = await actions.find_object(job)
        if arguments.yes or _confirmed(name):
            await actions.cancel(name, uid)

    return _each(arguments, cancel)


def _confirmed(job: JobName) -> bool:
    if confirmed(f"Delete {job} and its pods?"):
        return True
    print(f"{job} was not deleted", file=sys.stderr)
    return False


Act = Callable[["JobActions", "JobName"], Coroutine[Any, Any, None]]


def _each(arguments: argparse.Namespace, act: Act) -> int:
    """Act on each job in turn; the first error ends the command."""
    from rackgate_cli.jobs.actions import JobActions
    from rackgate_cli.jobs.names import parse

    # A wrong name is reported before anything is changed.
    jobs = [parse(text) for text in arguments.jobs]

    async def run(actions: JobActions) -> None:
        for job in jobs:
            await act(actions, job)

    _run(arguments, lambda client, namespace: run(JobActions(client, namespace, print)))
    return 0


def _run(
    arguments: argparse.Namespace, act: Callable[[Any, str], Coroutine[Any, Any, None]]
) -> None:
    from rackgate.kube.errors import KubeError
    from rackgate_cli.cluster.target import target_of

    target = target_of(arguments, "jobs")

    async def acting() -> None:
        async with target.client() as client:
            await act(client, arguments.namespace or target.namespace)

    try:
        interruptible.run(acting())
    except KubeError as error:
        raise CommandError(str(error)) from error


def show_logs(arguments: argparse.Namespace) -> int:
    """Print logs of a job, or of a playground's component; return the exit code."""
    if is_component(arguments.jobs):
        _reject_flags_of_pods(arguments)
        from rackgate_cli.playground.commands import show_component_logs

        show_component_logs(arguments.state, arguments.jobs, follow=arguments.follow)
        return 0
    from rackgate_cli.jobs.logs import JobLogs, LogOptions
    from rackgate_cli.jobs.names import parse

    job = parse(arguments.jobs)
    options = LogOptions(
        follow=arguments.follow,
        tail=arguments.tail,
        ranks=frozenset(arguments.rank or ()),
        container=arguments.container,
    )
    _run(arguments, lambda client, namespace: JobLogs(client, namespace, options).run(job))
    return 0


def _reject_flags_of_pods(arguments: argparse.Namespace) -> None:
    """Raise UsageError for flags that a component's log, a file of the playground, ignores."""
    given = [
        flag
        for flag, value in (
            ("--tail", arguments.tail),
            ("--rank", arguments.rank),
            ("--container", arguments.container),
            ("--namespace", arguments.namespace),
            ("--kubeconfig", arguments.kubeconfig),
            ("--context", arguments.context),
        )
        if value is not None
    ]
    if given:
        name = arguments.jobs
        raise UsageError(
            f'"{name}" is a component of the playground, and {", ".join(given)} only works for '
            f"jobs: write job/{name} if you mean a job"
        )


def is_component(word: str, known: Sequence[str] = (*SERVICES, *COMPONENTS, *OPERATORS)) -> bool:
    """Whether a word names a service, a replica of one, or a component of a playground."""
    name, _, number = word.rpartition("-")
    return word in known or (name in SERVICES and number.isdigit())
