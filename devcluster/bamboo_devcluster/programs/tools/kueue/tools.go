//go:build tools

// Package tools pins the Kueue that the tests run; it is never compiled itself.
package tools

import _ "sigs.k8s.io/kueue/cmd/kueue"
