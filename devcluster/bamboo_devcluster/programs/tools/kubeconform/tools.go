//go:build tools

// Package tools pins the kubeconform that the tests run; it is never compiled itself.
package tools

import _ "github.com/yannh/kubeconform/cmd/kubeconform"
