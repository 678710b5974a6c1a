//go:build tools

// Package tools pins the main package that the tests of the chart build.
package tools

import (
	_ "helm.sh/helm/v3/cmd/helm"
)
