//go:build tools

// Package tools pins the main package that the bench builds.
package tools

import (
	_ "sigs.k8s.io/kueue/test/performance/scheduler/minimalkueue"
)
