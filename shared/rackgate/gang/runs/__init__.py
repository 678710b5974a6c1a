"""What is written about a run: its gangs when it starts, and pods that are done."""
