"""Tests of the console's page in a real browser."""
