package router_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/audit/audittest"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/keys"
)

// auditLine is a line of the audit log.
type auditLine = audittest.Line

// audited reads an audit log.
func audited(t *testing.T, name string) []auditLine { return audittest.Lines(t, name) }

// acts waits until the audit log has an act that begins so, as "action, object, outcome".
func acts(t *testing.T, name, want string) { audittest.Act(t, name, want) }

// TestAuditedActs checks that each administrative act has a line, also over a rotation of the file.
func TestAuditedActs(t *testing.T) {
	t.Parallel()
	k, name := newKeyring(t), filepath.Join(t.TempDir(), "audit.log")
	k.add()
	policy := filepath.Join(t.TempDir(), "policy.json")
	write(t, policy, `{"mode":"score"}`)
	s := serve(t, simulate(t, 1), k.locked, func(c *router.Config) { c.Audit.Log, c.Router.PolicyFile = name, policy })
	acts(t, name, "start, version ")
	s.threshold(`{"model":"sim","active_decode_blocks_threshold":0.9}`)
	acts(t, name, "POST /busy_threshold, active_decode_blocks_threshold=0.9 model=sim, 200")
	req, _ := http.NewRequest(http.MethodDelete, s.admin+"/busy_threshold?model=nothing", nil)
	if resp, err := s.client.Do(req); err == nil {
		resp.Body.Close()
	}
	acts(t, name, "DELETE /busy_threshold, model=nothing, 404")
	s.changed("/adapters/load", `{"adapter":"a","path":"s3://user:password@bucket/a","auth":"password","model":"sim"}`)
	acts(t, name, "POST /adapters/load, adapter=a model=sim, ")
	s.explain(chatBody("hello", ""))
	s.NoteReload(nil)
	acts(t, name, "reload, , ok")
	write(t, policy, `{"mode":"round_robin"}`)
	acts(t, name, "policy, mode round_robin, ok")
	write(t, policy, `{"mode":"magic"}`)
	acts(t, name, "policy, , ")
	if err := os.Rename(name, name+".1"); err != nil {
		t.Fatal(err)
	}
	if err := s.ReopenLogs(); err != nil {
		t.Fatal(err)
	}
	_, id := k.add()
	acts(t, name, "key created, "+id+" of tenant acme, ok")
	k.edit(func(all []*keys.Record) []*keys.Record { all[len(all)-1].Name = "another"; return all })
	acts(t, name, "key changed, "+id)
	k.revoke(id)
	acts(t, name, "key revoked, "+id)
	k.edit(func(all []*keys.Record) []*keys.Record { return all[:len(all)-1] })
	acts(t, name, "key deleted, "+id)
	s.drain()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	acts(t, name, "stop, , ok")
	for _, l := range append(audited(t, name+".1"), audited(t, name)...) {
		if l.Event != "act" || strings.Contains(l.Object, "password") || strings.Contains(l.Action, "/debug/route") {
			t.Errorf("%+v", l)
		}
	}
}

// refusals counts the refusals with a reason in an audit log.
func refusals(t *testing.T, name, reason string) (n int) {
	for _, l := range audited(t, name) {
		if l.Event == "refusal" && l.Reason == reason {
			n++
		}
	}
	return n
}

// TestAuditedRefusals checks that each refused identity has a line with the reason, and no line a
// secret.
func TestAuditedRefusals(t *testing.T) {
	t.Parallel()
	k, name := newKeyring(t), filepath.Join(t.TempDir(), "audit.log")
	key, id := k.add()
	lists, listsID := k.add(func(r *keys.Record) { r.Scopes = []string{"models"} })
	gone, goneID := k.add(func(r *keys.Record) { now := time.Now(); r.Revoked = &now })
	late, lateID := k.add(func(r *keys.Record) { past := time.Now().Add(-time.Hour); r.Expires = &past })
	front, frontID := k.add(scopes("inference", "act_as"))
	other, otherID := keys.Generate()
	s := serve(t, simulate(t, 1), k.locked, func(c *router.Config) { c.Audit.Log = name })
	body := chatBody("a private prompt", plain)
	for reason, c := range map[string]struct {
		header  []string
		id, who string
	}{
		"no_key":             {},
		"bad_scheme":         {header: []string{"Authorization", "Basic secretword"}},
		"not_a_key":          {header: bearer("sk-secretword")},
		"several_keys":       {header: append(bearer(key), "x-api-key", other)},
		"unknown_key":        {header: bearer(other), id: otherID},
		"expired_key":        {header: bearer(late), id: lateID},
		"revoked_key":        {header: bearer(gone), id: goneID},
		"insufficient_scope": {header: bearer(lists), id: listsID, who: "acme"},
		"invalid_identity":   {header: append(bearer(front), "x-cgn-tenant", "a b"), id: frontID},
		"steering_denied":    {header: append(bearer(key), "x-cgn-node", "sim-0"), id: id, who: "acme"},
	} {
		s.chat(body, c.header...)
		eventually(t, reason, func() bool {
			return slices.ContainsFunc(audited(t, name), func(l auditLine) bool {
				return l.Event == "refusal" && l.Reason == reason && l.Key == c.id && l.Tenant == c.who &&
					l.Detail != "" && strings.HasPrefix(l.Client, "127.0.0.1:") && l.Port == "serving" &&
					l.Asked == "chat"
			})
		})
	}
	for _, unread := range []string{"Content-Length: 5000", "Transfer-Encoding: chunked"} {
		was := refusals(t, name, "unknown_key")
		conn := s.dial()
		fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nx-api-key: %s\r\n%s\r\n\r\n5\r\nhello\r\n", other,
			unread)
		eventually(t, unread, func() bool { return refusals(t, name, "unknown_key") == was+1 })
		conn.Close()
	}
	mustAll(t, "a good key", []*reply{s.chat(body, bearer(key)...)})
	status, _ := s.threshold(`{"model":"sim","active_decode_blocks_threshold":1}`, "Origin", "http://evil")
	if status != 403 {
		t.Errorf("another site may set thresholds: %d", status)
	}
	eventually(t, "the refusal at the admin port", func() bool {
		return slices.ContainsFunc(audited(t, name), func(l auditLine) bool {
			return l.Reason == "admin_403" && l.Port == "admin" && l.Asked == "POST /busy_threshold" && l.Detail != ""
		})
	})
	page, _ := os.ReadFile(name)
	for _, secret := range []string{key[13:45], other[13:45], gone[13:45], "secretword", "private"} {
		if strings.Contains(string(page), secret) {
			t.Errorf("the audit log has %q", secret)
		}
	}
}

// TestFloodOfRefusals checks that a flood of requests without identity has few lines, which tell
// how many there were.
func TestFloodOfRefusals(t *testing.T) {
	t.Parallel()
	k, name := newKeyring(t), filepath.Join(t.TempDir(), "audit.log")
	k.add()
	s := serve(t, simulate(t, 1), k.locked, func(c *router.Config) { c.Audit.Log, c.Audit.Refusals = name, 2 })
	const flood = 400
	began := time.Now()
	together(flood, func(int) *reply { return s.ask("GET", "/v1/models", "") })
	seconds := int(time.Since(began)/time.Second) + 2
	suppressed := int(s.metrics().sum("cgn_router_audit_suppressed_total"))
	s.drain()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	lines, told := 0, 0
	for _, l := range audited(t, name) {
		if l.Event == "refusal" {
			told += l.Suppressed
			if l.Detail != "" { // otherwise it only tells how many there were
				lines++
			}
		}
	}
	if lines > 2*seconds || lines+told != flood || told != suppressed {
		t.Errorf("%d lines in %d s, which tell of %d more, and %d suppressed", lines, seconds, told, suppressed)
	}
}

// TestAuditLinesThatAreLost checks that a full disk loses lines and no request.
func TestAuditLinesThatAreLost(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1), func(c *router.Config) { c.Audit.Log = "/dev/full" })
	mustAll(t, "a full disk", []*reply{s.chat(chatBody("hello", plain))})
	s.NoteReload(nil)
	eventually(t, "lines are lost", func() bool { return s.metrics().sum("cgn_router_audit_lost_total") >= 2 })
	if s.log.count("audit log not written") != 1 {
		t.Error("the log says nothing")
	}
}

// TestLogsAfterAFullDisk checks that each log that cannot be written has one line in the router's
// log, whatever clients send, and one that counts what was lost once it can be written again.
func TestLogsAfterAFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	audit, access := filepath.Join(dir, "audit"), filepath.Join(dir, "access")
	link := func(to ...string) {
		for i, name := range []string{audit, access} {
			_ = os.Remove(name) // the first time there is none
			if err := os.Symlink(to[i], name); err != nil {
				t.Fatal(err)
			}
		}
	}
	link("/dev/full", "/dev/full")
	s := serve(t, simulate(t, 1), func(c *router.Config) { c.Audit.Log, c.Log.Access = audit, access })
	for _, i := range []float64{0, 1} {
		s.NoteReload(nil)
		mustAll(t, "a full disk", []*reply{s.chat(chatBody("hello", plain))})
		eventually(t, "lines are lost", func() bool {
			m := s.metrics()
			return m.sum("cgn_router_audit_lost_total") >= 2+i && m.sum("cgn_router_access_log_dropped_total") == 1+i
		})
	}
	for _, what := range []string{"audit log", "access log"} {
		if n := s.log.count(what + " not written"); n != 1 {
			t.Errorf("%s: %d lines", what, n)
		}
	}
	link(filepath.Join(dir, "a"), filepath.Join(dir, "b"))
	if err := s.ReopenLogs(); err != nil {
		t.Fatal(err)
	}
	s.NoteReload(nil)
	mustAll(t, "with room", []*reply{s.chat(chatBody("hello", plain))})
	for _, what := range []string{`audit log written again" lines_lost=3`, `access log written again" lines_lost=2`} {
		eventually(t, what, func() bool { return s.log.count(what) == 1 })
	}
}

// TestLogsOfOthers checks that the router names logs that other users can read, at its start and
// after a rotation, and no others.
func TestLogsOfOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	audit, access := filepath.Join(dir, "audit.log"), filepath.Join(dir, "access.log")
	chmod := func(name string, mode os.FileMode) {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	write(t, audit, "")
	chmod(audit, 0o644)
	s := serve(t, simulate(t, 1), func(c *router.Config) { c.Audit.Log, c.Log.Access = audit, access })
	const note = "other users can read or change a log"
	if n := s.log.count(note); n != 1 || s.log.count("chmod 0600 "+audit) != 1 {
		t.Errorf("%d warnings", n)
	}
	chmod(audit, 0o600)
	chmod(access, 0o644)
	if err := s.ReopenLogs(); err != nil {
		t.Fatal(err)
	}
	if n := s.log.count(note); n != 2 || s.log.count("chmod 0640 "+access) != 1 {
		t.Errorf("%d warnings", n)
	}
}

func TestAuditIsChecked(t *testing.T) {
	for want, tweak := range map[string]func(*router.Config){
		"audit.log: ":               func(c *router.Config) { c.Audit.Log = "/nowhere/audit.log" },
		"audit.refusals_per_second": func(c *router.Config) { c.Audit.Refusals = 0 },
	} {
		c := settings(t, &logged{t: t})
		c.Router.Backends = []string{"http://127.0.0.1:1"}
		tweak(&c)
		err := config.Check(&c)
		if err == nil {
			err = c.Audit.Examine() // as config.Load does
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
		if r, err := router.New(c); err == nil {
			r.Close()
			t.Errorf("%s: the router starts", want)
		}
	}
}
