module rackgate.dev/tests/kueuecrds

go 1.24.0

// Only its files are used, the CRDs: it is downloaded, never built.
require sigs.k8s.io/kueue v0.19.2
