"""Status of Workloads of gangs: computed, and written."""
