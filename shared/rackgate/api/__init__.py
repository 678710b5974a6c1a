"""The `kueue.x-k8s.io` objects that Rackgate owns: names, models, and their CRDs."""
