//go:build tools

// Package tools pins the main package that the playground builds.
package tools

import (
	_ "sigs.k8s.io/lws/cmd"
)
