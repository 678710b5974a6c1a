"""State from the watches. No I/O, no clock, no decision."""
