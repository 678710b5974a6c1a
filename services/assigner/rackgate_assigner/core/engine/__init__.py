"""The steps of one placement; `core.placement` is the way in."""
