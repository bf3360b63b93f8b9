// Package buildinfo returns the version of the project that a binary was built from.
package buildinfo

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Set by the linker:
//
//	-ldflags "-X github.com/cognitora/dataplane/internal/buildinfo.version=v1.2.3
//	          -X github.com/cognitora/dataplane/internal/buildinfo.commit=0123abcd"
var (
	version string
	commit  string
)

// Version returns the stamped version, or else the module version, or else "devel".
func Version() string {
	if version != "" {
		return version
	}
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return b.Main.Version
	}
	return "devel"
}

// Commit returns the stamped commit, or else the one that the Go tool recorded, or else "unknown".
func Commit() string {
	if commit != "" {
		return commit
	}
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}

// String returns the output of --version: "v1.2.3 (commit 0123abcd, go1.26.0, linux/amd64)".
func String() string {
	return fmt.Sprintf("%s (commit %s, %s, %s/%s)", Version(), Commit(), runtime.Version(), runtime.GOOS,
		runtime.GOARCH)
}
