// Package buildinfo says which version of the project a binary was built from.
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

// Version is the stamped version, else the module version, else "devel".
func Version() string {
	if version != "" {
		return version
	}
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return b.Main.Version
	}
	return "devel"
}

// Commit is the stamped commit, else the one the Go tool recorded, else "unknown".
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

// String is what --version prints: "v1.2.3 (commit 0123abcd, go1.26.0, linux/amd64)".
func String() string {
	return fmt.Sprintf("%s (commit %s, %s, %s/%s)", Version(), Commit(), runtime.Version(), runtime.GOOS,
		runtime.GOARCH)
}
