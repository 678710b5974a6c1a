//go:build tools

// Package tools pins the main packages that the playground builds.
package tools

import (
	_ "sigs.k8s.io/kwok/cmd/kwok"
)
