//go:build tools

// Package tools pins the main packages that the playground builds.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
)
