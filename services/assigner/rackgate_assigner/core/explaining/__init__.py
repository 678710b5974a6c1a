"""Why something waits, for people and tools."""
