package up

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/ctl/cli"
)

// TestAbandon: an interrupted start is waited for, but not for long, so that its programs stop and
// its directory is removed.
func TestAbandon(t *testing.T) {
	for name, takes := range map[string]time.Duration{"ends": time.Second, "hangs": time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				force, cancel := context.WithCancel(t.Context())
				cancel()
				var log strings.Builder
				left := make(chan struct{})
				l := &local{flags: &flags{}, parts: newParts(force), leave: func() error { close(left); return nil }}
				l.parts.add(part{Name: "engine-1"}, func() error { return nil })
				started := make(chan error, 1)
				time.AfterFunc(takes, func() { started <- context.Canceled })
				began := time.Now()
				err := l.abandon(&cli.App{Err: &log}, started)
				if err == nil || err.Error() != "stopped while it was starting" {
					t.Errorf("got %v", err)
				}
				if took := time.Since(began); took != min(takes, abandonWithin) {
					t.Errorf("it took %v", took)
				}
				if takes > abandonWithin {
					select {
					case <-left:
						t.Error("the directory was taken from what still starts")
					default:
					}
				}
				<-left
				synctest.Wait()
				if !strings.Contains(log.String(), "stopped engine-1") {
					t.Errorf("log: %s", log.String())
				}
			})
		})
	}
}
