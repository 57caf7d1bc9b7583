//go:build tools

// Package tools pins the S3 server that the tests run; it is never compiled itself.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
