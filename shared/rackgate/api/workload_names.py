"""Names of Workloads, derived from their owners so that creating one twice is harmless.

Source: the peer's `GetWorkloadNameForOwnerWithGVK`, so that both would name a job's Workload alike.
"""

from __future__ import annotations

import hashlib
from typing import Final

MAX_NAME: Final = 253
_HASH: Final = 5
_DIGITS: Final = 10  # an ordinal has fewer


def workload_name(kind: str, group: str, owner: str, uid: str, extra: str = "") -> str:
    """Name of the Workload of an owner: `<kind>-<owner>` cut to 247, then `-` and 5 hex digits.

    Args:
        kind: the owner's kind, as `Job`; lower-cased in the name.
        group: the owner's API group, as `batch`; empty for core kinds.
        owner: the owner's name.
        uid: the owner's uid: a recreated owner gets another Workload.
        extra: told apart within one owner, as the generation of an elastic job.

    Returns:
        At most 253 characters; the digits are of sha1 over the arguments, one per line.
    """
    fields = [kind, group, owner, uid] + ([extra] if extra else [])
    digest = hashlib.sha1("\n".join(fields).encode(), usedforsecurity=False).hexdigest()
    # A cut behind a dot would leave an empty label, which is no object name.
    prefix = f"{kind.lower()}-{owner}"[: MAX_NAME - 1 - _HASH].rstrip(".")
    return f"{prefix}-{digest[:_HASH]}"


def slice_name(parent: str, podset: str, ordinal: int) -> str:
    """Name of a workload slice: `<parent>-<podset>-<ordinal>`; one too long is cut as above.

    Args:
        parent: name of the Workload that it extends.
        podset: the PodSet that grows.
        ordinal: told apart within one PodSet; `slice_ordinal` reads it back.

    Returns:
        At most 253 characters.
    """
    whole, ordinal_suffix = f"{parent}-{podset}", f"-{ordinal}"
    if len(whole) + len(ordinal_suffix) > MAX_NAME:
        digest = hashlib.sha1(f"{parent}\n{podset}".encode(), usedforsecurity=False).hexdigest()
        prefix_length = MAX_NAME - len(ordinal_suffix) - 1 - _HASH
        whole = f"{whole[:prefix_length].rstrip('.-')}-{digest[:_HASH]}"
    return whole + ordinal_suffix


def slice_ordinal(name: str) -> int:
    """The ordinal in the name of a workload slice; 0 for one that was named otherwise."""
    last = name.rpartition("-")[2]
    return int(last) if last.isascii() and last.isdecimal() and len(last) < _DIGITS else 0
