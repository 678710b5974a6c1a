//go:build tools

// Package tools pins the main package that the playground builds.
package tools

import (
	_ "github.com/ray-project/kuberay/ray-operator"
)
