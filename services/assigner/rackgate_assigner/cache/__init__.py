"""What the watches say, as state. No I/O, no clock, no decision."""
