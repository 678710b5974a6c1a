"""A service as it is, which tells at SIGUSR2 what its heap consists of: for `bench.soak`.

    python -m bench.soak_service rackgate_assigner FILE [--trace] ARGUMENTS...

Each signal appends one line of JSON to FILE: how many objects of each type there are and, with
`--trace`, how many bytes each line of the code has allocated that are in use.
"""

from __future__ import annotations

import gc
import json
import runpy
import signal
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any, Final

LINES: Final = 400
_FRAMES: Final = 1


def heap() -> dict[str, Any]:
    """Objects by type, containers only, and traced bytes by line."""
    gc.collect()
    types = Counter(f"{type(item).__module__}.{type(item).__qualname__}" for item in _objects())
    found: dict[str, Any] = {"types": dict(types.most_common())}
    if tracemalloc.is_tracing():
        statistics = tracemalloc.take_snapshot().statistics("lineno")
        found["bytes"] = {
            f"{one.traceback[0].filename}:{one.traceback[0].lineno}": one.size
            for one in statistics[:LINES]
        }
        found["traced"] = tracemalloc.get_traced_memory()[0]
    return found


def _objects() -> list[object]:
    # What was frozen after the first list is left out of `get_objects`, and does not grow.
    return gc.get_objects()


def main() -> None:
    """Run the service until it ends."""
    module, file, *arguments = sys.argv[1:]
    if "--trace" in arguments:
        arguments.remove("--trace")
        tracemalloc.start(_FRAMES)

    def told(_number: int, _frame: object) -> None:
        with Path(file).open("a") as output:
            output.write(json.dumps(heap()) + "\n")

    signal.signal(signal.SIGUSR2, told)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
