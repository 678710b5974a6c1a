"""Checks a cluster's objects against the invariants, sharing no accounting with the services."""
