package model

import (
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
)

func ctl(t *testing.T, env map[string]string, args ...string) (string, error) {
	t.Helper()
	return ctltest.Run(t, Command, env, append([]string{"model"}, args...)...)
}

func TestMain(m *testing.M) { ctltest.Main(m) }
