"""The cluster that a command asks: where it is, what the user may do, what it has."""
