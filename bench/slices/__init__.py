"""Elastic jobs, resized step by step."""
