"""Rows of the tables that the page shows, from the cache of the assigner. Pure."""
