"""Workload slices: how an admitted job grows and shrinks while it runs. Pure, and free of kinds."""
