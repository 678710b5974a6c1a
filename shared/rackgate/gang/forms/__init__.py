"""The short forms of a Workload of gangs, and the long one."""
