// Package blackhole has the version of the program.
package blackhole

import (
	_ "embed"
	"strings"
)

//go:embed VERSION
var version string

// Version returns the version of the next release, or of this one: build, packages, SDKs and documents take it from the file VERSION.
func Version() string { return "v" + strings.TrimSpace(version) }
