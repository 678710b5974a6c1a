"""Broken nodes of running Workloads, and the second pass that replaces them."""
