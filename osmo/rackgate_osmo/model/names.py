"""Names that KAI and the API server take, whatever users call their groups.

A subgroup's name is the value of a pod label, so 63 characters; it is lower case, because KAI
looks parents up in lower case only. A name that would be used twice, or is too long, is cut and
gets a digest of the node's exact path: so no name depends on the order of tasks.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeAlias

# Groups from the first level below the hoisted ones down; None is the filler, which no group is.
Path: TypeAlias = tuple[str | None, ...]

# KAI[pod-subgroup-label-64, subgroup-name-unbounded]
MAX_NAME: Final = 63
# "zz": among siblings, KAI places what sorts first; this goes last.
FILLER: Final = "zz-any"
_DIGITS: Final = 8
_ALL_DIGITS: Final = 32
_CUT: Final = re.compile(r"[^a-z0-9]+")


def digest(parts: Sequence[str | None], digits: int = _DIGITS) -> str:
    """Hexadecimal digits that tell apart any two lists of texts."""
    exact = "".join("n;" if part is None else f"{len(part)}:{part};" for part in parts)
    found = hashlib.sha256(exact.encode("utf-8", "surrogatepass")).hexdigest()
    return found[:digits]


def segment(group: str | None) -> str:
    """A group's part of a name.

    KAI looks a parent up in lower case, but keeps names as they are: KAI[capital-parent-pending].
    """
    return FILLER if group is None else group.lower()


def unique_names(texts: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """A name for each node: its text where that is short enough and its own, else with a digest.

    Args:
        texts: wanted names, lower case, of characters that a label value may have, beginning with
            a letter or digit.
        paths: what tells the nodes apart, all different; `texts` need not be.

    Returns:
        Names in the same order, unique, of 63 characters at most.
    """
    counts = Counter(texts)
    # KAI[duplicate-subgroup-name]
    names = [
        text if counts[text] == 1 and len(text) <= MAX_NAME else _digested(text, path, _DIGITS)
        for text, path in zip(texts, paths, strict=True)
    ]
    digits = _DIGITS
    while len(counts := Counter(names)) < len(names):
        # A group is called like another one's digested name, or two digests are alike: whoever
        # shares a name gets (more of) a digest, so that again no order matters.
        digits = min(2 * digits, _ALL_DIGITS)
        names = [
            name if counts[name] == 1 else _digested(text, path, digits)
            for name, text, path in zip(names, texts, paths, strict=True)
        ]
    return names


def _digested(text: str, path: Path, digits: int) -> str:
    return f"{text[: MAX_NAME - 1 - digits]}-{digest(path, digits)}"


def pod_group_names(workflow: str, groups: Sequence[str]) -> dict[str, str]:
    """Names of the PodGroups by task group, when the caller gives none: `<workflow>-<group>`.

    A digest of both names is added where the text alone could belong to another pair, is too long
    or had to be changed to be the name of an object.
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
    # With "-" in the group, workflow w with group a-b and w-a with b would read alike.
    if plain == text and len(text) <= MAX_NAME and "-" not in group:
        return text
    return f"{plain[: MAX_NAME - 1 - digits].rstrip('-')}-{digest((workflow, group), digits)}"
