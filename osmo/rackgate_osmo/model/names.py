"""Names that KAI and the API server accept for any group name that users choose.

The name of a subgroup is the value of a pod label, so it has at most 63 characters. It is lower
case, because KAI looks parents up in lower case only. A name that is too long or not unique is cut
and gets a digest of the exact path of its node, so no name depends on the order of tasks.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeAlias

# Groups from the first level that not all tasks share; None stands for a filler.
Path: TypeAlias = tuple[str | None, ...]

# KAI[pod-subgroup-label-64, subgroup-name-unbounded]
MAX_NAME: Final = 63
# KAI places siblings in the order of their names: a filler comes last.
FILLER: Final = "zz-any"
_DIGITS: Final = 8
_ALL_DIGITS: Final = 32
_CUT: Final = re.compile(r"[^a-z0-9]+")


def digest(parts: Sequence[str | None], digits: int = _DIGITS) -> str:
    """Hexadecimal digest of a list of texts."""
    exact = "".join("n;" if part is None else f"{len(part)}:{part};" for part in parts)
    found = hashlib.sha256(exact.encode("utf-8", "surrogatepass")).hexdigest()
    return found[:digits]


def segment(group: str | None) -> str:
    """The segment of a name that stands for a group.

    KAI looks a parent up in lower case, but keeps names unchanged: KAI[capital-parent-pending].
    """
    return FILLER if group is None else group.lower()


def unique_names(texts: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """A name for each node: its text if that is short enough and unique, else with a digest.

    Args:
        texts: preferred names: lower case, with characters of a label value, starting with a letter
            or digit.
        paths: unique identity of each node; `texts` may have duplicates.

    Returns:
        Names in the same order, unique, at most 63 characters long.
    """
    counts = Counter(texts)
    # KAI[duplicate-subgroup-name]
    names = [
        text if counts[text] == 1 and len(text) <= MAX_NAME else _digested(text, path, _DIGITS)
        for text, path in zip(texts, paths, strict=True)
    ]
    digits = _DIGITS
    while len(counts := Counter(names)) < len(names):
        # A group has the digested name of another one, or two digests are equal. All nodes
        # with such a name get a longer digest, so the order still does not matter.
        digits = min(2 * digits, _ALL_DIGITS)
        names = [
            name if counts[name] == 1 else _digested(text, path, digits)
            for name, text, path in zip(names, texts, paths, strict=True)
        ]
    return names


def _digested(text: str, path: Path, digits: int) -> str:
    return f"{text[: MAX_NAME - 1 - digits]}-{digest(path, digits)}"


def pod_group_names(workflow: str, groups: Sequence[str]) -> dict[str, str]:
    """Names of the PodGroups by task group if the caller gives none: `<workflow>-<group>`.

    A digest of both names is added if the text is ambiguous, too long, or was changed to be a valid
    object name.
    """
    found = {group: _pod_group_name(workflow, group, _DIGITS) for group in groups}
    counts = Counter(found.values())
    return {
        group: name if counts[name] == 1 else _pod_group_name(workflow, group, _ALL_DIGITS)
        for group, name in found.items()
    }


def _pod_group_name(workflow: str, group: str, digits: int) -> str:
    text = f"{workflow}-{group}"
    plain = _CUT.sub("-", text.lower()).strip("-") or "group"
    # With "-" in a group, workflow w with group a-b and workflow w-a with group b collide.
    if plain == text and len(text) <= MAX_NAME and "-" not in group:
        return text
    return f"{plain[: MAX_NAME - 1 - digits].rstrip('-')}-{digest((workflow, group), digits)}"
