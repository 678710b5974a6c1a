"""What benches share: the cluster, the load, how it is measured and judged."""
