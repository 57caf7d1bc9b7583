//go:build tools

// Package tools pins the programs of kubelet nodes; it is never compiled itself.
package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
