"""One scheduling cycle: queues, quota, flavors, grants."""
