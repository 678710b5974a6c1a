"""Names of Workloads, derived from their owners so that creating one twice is harmless.

Source: the peer's `GetWorkloadNameForOwnerWithGVK`, so that both would name a job's Workload alike.
"""

from __future__ import annotations

import hashlib
from typing import Final

MAX_NAME: Final = 253
_HASH: Final = 5


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
    facts = [kind, group, owner, uid] + ([extra] if extra else [])
    digest = hashlib.sha1("\n".join(facts).encode(), usedforsecurity=False).hexdigest()
    # A cut behind a dot would leave an empty label, which is no object name.
    prefix = f"{kind.lower()}-{owner}"[: MAX_NAME - 1 - _HASH].rstrip(".")
    return f"{prefix}-{digest[:_HASH]}"
