"""A slow second opinion on placement: dicts, lists and recursion over `tas-scenario/1` questions.

Written from the conformance data's description alone; nothing is shared with the engine, not even
its quantities or its taint rules, so that no mistake can be made twice in the same way.
"""

from tests.support.oracle.walk import expected, prepared

__all__ = ["expected", "prepared"]
