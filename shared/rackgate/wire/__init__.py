"""Partial views of the kinds Rackgate only reads: the fields that are used, nothing else."""
