package main

import (
	"os"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
)

// TestMain runs the test binary as the program itself if a test has started it so.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_AS") == "ctl" {
		main()
		return
	}
	ctltest.Main(m)
}
