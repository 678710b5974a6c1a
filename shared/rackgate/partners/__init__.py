"""What others' systems say about topology, turned into objects of theirs; pure."""
