module rackgate.dev/tests/monitoringcrds

go 1.24.0

// Only its files are used, the CRDs: it is downloaded, never built.
require github.com/prometheus-operator/prometheus-operator v0.85.0
