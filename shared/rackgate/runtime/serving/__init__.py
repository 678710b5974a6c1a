"""Listening for callers: connections within a limit, and answers about health."""
