"""What KAI makes of a task group, and which of its habits is to blame where it does worse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from rackgate.partners.osmo import Built, KaiVersion, Profile
from rackgate_cli.osmo_explanation import Deviation, DomainRoom, Kai, KaiResult
from rackgate_cli.osmo_kai import Habit, NeverError, Part, Scheduler, broken, parts_of
from rackgate_cli.osmo_room import Room, Shape, path_told
from rackgate_cli.osmo_search import UndecidedError
from rackgate_cli.osmo_wishes import Wishes

SUBGROUP_LABEL: Final = "kai.scheduler/subgroup-name"
STEPS: Final = 40_000_000  # looks at what a node takes: some seconds
_BLAMED: Final = (Habit.UNLABELLED, Habit.ONE_DOMAIN, Habit.SIBLINGS)


@dataclass(frozen=True, slots=True)
class Tried:
    """How KAI fared.

    Attributes:
        where: nodes and shapes of the pods that it placed.
        broken: subgroups whose required domain does not hold.
    """

    result: KaiResult
    where: Sequence[tuple[int, Shape]] = ()
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of one profile, as far as one task group is concerned."""

    pod_group: Mapping[str, Any]
    levels: tuple[str, ...]
    members: Mapping[str, Sequence[Shape]]

    def top(self) -> Part:
        """The PodGroup as a tree.

        Raises:
            NeverError: KAI would not even try.
        """
        return parts_of(self.pod_group, self.levels, self.members)


def objects_of(built: Built, index: int, wishes: Wishes) -> Objects:
    """The PodGroup of the `index`-th task group, with its Topology and pods."""
    spec = built.topology["spec"] if built.topology is not None else {"levels": []}
    members: dict[str, list[Shape]] = {}
    for task, shape in wishes.tasks.items():
        labels = built.pods[(wishes.group.name, task)].labels
        members.setdefault(labels.get(SUBGROUP_LABEL, ""), []).append(shape)
    levels = tuple(level["nodeLabel"] for level in spec["levels"])
    return Objects(built.pod_groups[index], levels, members)


def attempt(
    room: Room, objects: Objects, kai: KaiVersion, without: Collection[Habit] = ()
) -> Tried:
    """Let KAI place a task group on the room there is."""
    try:
        top = objects.top()
        scheduler = Scheduler(room, objects.levels, kai, without)
        if not scheduler.place(top, STEPS):
            return Tried("pending")
    except NeverError:
        return Tried("pending")
    except UndecidedError:
        return Tried("unknown")
    wrong = tuple(broken(top, scheduler))
    where = [(node, shape) for _, node, shape in scheduler.where]
    return Tried("misplaced" if wrong else "scheduled", where, wrong)


def predict(
    room: Room, by_profile: Mapping[Profile, Objects], profile: Profile, kai: KaiVersion
) -> tuple[Tried, Tried]:
    """What KAI does with the objects of the profile in use, and with those of `robust`."""
    tried = attempt(room, by_profile[profile], kai)
    if profile is Profile.ROBUST:
        return tried, tried
    return tried, attempt(room, by_profile[Profile.ROBUST], kai)


def explained(
    room: Room,
    objects: Objects,
    kai: KaiVersion,
    profile: Profile,
    tried: tuple[Tried, Tried],
    *,
    possible: bool,
) -> Kai:
    """The prediction with the reasons for what is not as it could be.

    Args:
        room: as it was for the attempt.
        objects: of the profile in use.
        kai: as for the attempt.
        profile: in use.
        tried: of `predict`.
        possible: whether there is a place for the task group.
    """
    mine, robust = tried
    found: list[Deviation] = []
    if mine.result == "misplaced":
        found.append(_dots(mine.broken))
    elif mine.result == "pending" and possible:
        helps = profile is Profile.SEED and robust.result == "scheduled"
        found = [_told(habit, room, objects, helps) for habit in _blame(room, objects, kai)]
    pods = Counter(path_told(room.path_of_leaf(node)) for node, _ in mine.where)
    places = tuple(DomainRoom(domain=path, pods=count) for path, count in sorted(pods.items()))
    return Kai(result=mine.result, robust=robust.result, places=places, deviations=tuple(found))


def _blame(room: Room, objects: Objects, kai: KaiVersion) -> tuple[Habit, ...]:
    """The fewest habits without which KAI would find a place."""
    for number in range(1, len(_BLAMED) + 1):
        for habits in combinations(_BLAMED, number):
            if attempt(room, objects, kai, habits).result in ("scheduled", "misplaced"):
                return habits
    # No order of siblings by size does it, but going back would.
    return (Habit.SIBLINGS,)


def _told(habit: Habit, room: Room, objects: Objects, helps: bool) -> Deviation:
    text, help_ = _WORDS[habit](room, objects)
    if helps:
        help_ = f"use --profile robust, with which KAI finds the place; or {help_}"
    return Deviation(name=habit.value, text=text, help=help_)


def _unlabelled(room: Room, objects: Objects) -> tuple[str, str]:
    lacking = {
        label: sum(label not in node.labels for node in room.nodes) for label in objects.levels
    }
    bare = sum(any(label not in node.labels for label in objects.levels) for node in room.nodes)
    shown = ", ".join(f"{label} on {count}" for label, count in lacking.items() if count)
    return (
        f"{bare} of {len(room.nodes)} nodes lack a label of the Topology ({shown}); for any "
        "constraint, also a mere preference, KAI counts only nodes that carry all of its labels, "
        "also those of keys that the workflow does not use",
        "label these nodes, or take the keys that they lack out of the pool",
    )


def _one_domain(room: Room, objects: Objects) -> tuple[str, str]:
    finest = len(objects.levels) - 1
    required = sorted(
        {
            objects.levels[part.required]
            for part in objects.top().walk()
            if part.required is not None and part.required < finest
        }
    )
    return (
        "the nodes that KAI has to choose from all lie in one domain of a finer level, and it then "
        f"does not see the level that is required ({', '.join(required)})",
        "require the pool's finest key instead, or add nodes in a second domain of "
        f"{objects.levels[-1]}",
    )


def _siblings(room: Room, objects: Objects) -> tuple[str, str]:
    names = [part.name for part in objects.top().order(by_size=False)]
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return (
        f"KAI places subgroups one after another in the order of their names ({shown}), each into "
        "the fullest domain that fits, and does not go back when a later one finds no room",
        "rename groups so that larger ones sort first",
    )


def _dots(names: Sequence[str]) -> Deviation:
    shown = ", ".join(name or "all pods" for name in names[:5])
    return Deviation(
        name=Habit.DOTS.value,
        text="KAI joins label values with dots, so that two domains read alike, and places "
        f"subgroups over both although one is required ({shown})",
        help="take the dots out of the node labels' values, or make the values of the finer key "
        "unique in the cluster",
    )


_WORDS: Final = {
    Habit.UNLABELLED: _unlabelled,
    Habit.ONE_DOMAIN: _one_domain,
    Habit.SIBLINGS: _siblings,
}
