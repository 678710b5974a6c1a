"""Pools and workflows to draw, with groups that want to be called alike."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

Document = dict[str, Any]

KEYS: Final = ("zone", "spine", "rack", "clique")
LABELS: Final = {key: f"example.com/{key}" for key in KEYS}
LONG: Final = "x" * 40
GROUPS: Final = (
    *("a", "b", "a-b", "b-c", "c", "A", "zz-any", "Zz-Any", "default", "0-a", "1-a"),
    *(LONG, f"{LONG}-1", f"{LONG}-2", "y" * 63, "B.c_1"),
)


@st.composite
def pools(draw: st.DrawFn) -> Document:
    """A pool with one to four keys."""
    width = draw(st.integers(1, len(KEYS)))
    keys = [{"key": key, "label": LABELS[key]} for key in KEYS[:width]]
    return {"name": "p", "backend": "b", "scheduler": "kai", "topology_keys": keys}


def requirements(pool: Document, groups: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """A list of requirements with each key once at most, in any order."""
    one = st.fixed_dictionaries(
        {"key": st.sampled_from([key["key"] for key in pool["topology_keys"]])},
        optional={"group": groups, "requirementType": st.sampled_from(["required", "preferred"])},
    )
    return st.lists(one, max_size=4, unique_by=lambda found: found["key"])


@st.composite
def submissions(draw: st.DrawFn) -> tuple[Document, Document]:
    """A pool, and a workflow that is refused for nothing but, perhaps, a conflict of types."""
    pool = draw(pools())
    groups = st.sampled_from(draw(st.lists(st.sampled_from(GROUPS), min_size=1, max_size=4)))
    names = ["default", "r1", "r2", "r3", "r4"][: draw(st.integers(1, 5))]
    gpus = st.sampled_from([1, 2, 8])
    resources = {
        name: {"gpu": draw(gpus), "topology": draw(requirements(pool, groups))} for name in names
    }
    choice = st.sampled_from(names)
    task_groups = []
    for number in range(draw(st.integers(1, 2))):
        chosen = draw(st.lists(choice, min_size=1, max_size=9))
        tasks = [{"name": f"t{index}", "resource": name} for index, name in enumerate(chosen)]
        task_groups.append({"name": f"g{number}", "tasks": tasks})
    workflow = {"name": "w", "groups": task_groups}
    return pool, {"workflow": workflow, "resources": resources}
