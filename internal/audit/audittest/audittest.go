// Package audittest reads audit logs in tests of daemons.
package audittest

import (
	"crypto/tls"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
)

// Line is a line of an audit log.
type Line struct {
	Event, Action, Object, Outcome, By, Reason, Detail, Key, Tenant, Client, Port, Asked string

	Suppressed int
}

// Lines reads an audit log.
func Lines(t testing.TB, name string) (all []Line) {
	t.Helper()
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(string(page)) {
		var l Line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		all = append(all, l)
	}
	return all
}

// Await waits until the log has a line that is wanted, and fails after a minute without one.
func Await(t testing.TB, name, what string, wanted func(l Line) bool) {
	t.Helper()
	for deadline, tick := time.After(time.Minute), time.Tick(5*time.Millisecond); ; {
		if slices.ContainsFunc(Lines(t, name), wanted) {
			return
		}
		select {
		case <-tick:
		case <-deadline:
			t.Fatalf("no line: %s, of %+v", what, Lines(t, name))
		}
	}
}

// Act waits for an act that begins so, as "action, object, outcome".
func Act(t testing.TB, name, want string) {
	t.Helper()
	Await(t, name, want, func(l Line) bool {
		return l.Event == "act" && strings.HasPrefix(l.Action+", "+l.Object+", "+l.Outcome, want)
	})
}

// Refusal waits for a refusal at a port, with a reason and whom it names, all as "port reason key".
func Refusal(t testing.TB, name, want string) {
	t.Helper()
	Await(t, name, want, func(l Line) bool {
		return l.Event == "refusal" && l.Detail != "" && l.Client != "" &&
			strings.TrimSpace(l.Port+" "+l.Reason+" "+l.Key) == want
	})
}

// Showing returns a TLS configuration that shows the certificate of a role of the fleet in dir, and
// trusts every server; "": it shows none.
func Showing(t testing.TB, dir string, role pki.Role, protocols ...string) *tls.Config {
	t.Helper()
	c := &tls.Config{InsecureSkipVerify: true, NextProtos: protocols}
	if role != "" {
		files := pki.FilesIn(dir, role)
		pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}
