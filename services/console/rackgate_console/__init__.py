"""The console: a read-only page of topology, queues and Workloads, and the service behind it."""
