"""A slow second opinion on admission: dicts and recursion over `quota-scenario/1` questions.

Written from the conformance data's description alone; nothing is shared with the engine. Every sum
is computed from scratch from the list of who holds what. Section numbers are those of the
description. Where pods go is the opinion of `tests.support.oracle`.
"""

from tests.support.quota_oracle.cycle import answer

__all__ = ["answer"]
