//go:build tools

// Package tools pins the module that carries the published schema of compose files.
package tools

import (
	_ "github.com/compose-spec/compose-go/v2/schema"
)
