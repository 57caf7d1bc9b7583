//go:build tools

// Package tools pins the programs that the development cluster builds; it is never compiled itself.
package tools

import _ "go.etcd.io/etcd/server/v3"
