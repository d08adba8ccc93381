// Package rallypoint holds what every part of Rallypoint shares: its version.
package rallypoint

import (
	_ "embed"
	"strings"
)

//go:embed VERSION
var version string

// Version is the version of this source, as in the file VERSION: "0.1.0".
func Version() string { return strings.TrimSpace(version) }
