//go:build tools

// Package tools pins the program that restores a copy of etcd.
package tools

import (
	_ "go.etcd.io/etcd/etcdutl/v3"
)
