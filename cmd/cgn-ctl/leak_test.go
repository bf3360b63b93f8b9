package main

import (
	"os"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
)

// TestMain is the program itself where a test has started it as that.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_AS") == "ctl" {
		main()
		return
	}
	ctltest.Main(m)
}
