package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is the program itself where a test has started it as that.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_AS") == "ctl" {
		main()
		return
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"), // once per process
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}
