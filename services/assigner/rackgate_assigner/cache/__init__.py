"""The assigner's memory: watch events folded into rows, usage and trees. No I/O, no clock."""

from rackgate_assigner.cache.cache import Cache

__all__ = ["Cache"]
