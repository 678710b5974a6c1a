"""Rackgate's shared library: the only package that the services may import."""
