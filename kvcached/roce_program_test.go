//go:build linux && cgo && rdma

package kvcached

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cognitora/dataplane/internal/pki"
)

// TestRoCEProgram runs the program of make build-rdma. The program opens the card, logs this,
// closes the card and ends.
func TestRoCEProgram(t *testing.T) {
	card := os.Getenv("RDMA_DEVICE")
	program, err := exec.LookPath("cgn-kvcached-rdma")
	if card == "" || err != nil {
		if os.Getenv("RDMA_REQUIRED") != "" {
			t.Fatalf("no card in RDMA_DEVICE, %q, or no program: %v", card, err)
		}
		t.Skip("RDMA_DEVICE names no card, or no cgn-kvcached-rdma is in PATH: make check-rdma runs this in a " +
			"virtual machine that has both")
	}
	if out, err := exec.CommandContext(t.Context(), program, "--version").Output(); err != nil ||
		!strings.HasSuffix(string(out), " with rdma\n") {
		t.Errorf("%q, %v", out, err)
	}
	s, dir := newSite(t), t.TempDir()
	files, sock, settings := pki.FilesIn(s.pki, pki.KVCached), filepath.Join(dir, "kv.sock"),
		filepath.Join(dir, "c.toml")
	text := fmt.Sprintf(`
kvcached = { cache_id = "a", data = %q, ram = "32MiB", ssd = 0, admin = "127.0.0.1:0", sock = %q }
quic = { listen = "127.0.0.1:0" }
tls = { ca = %q, cert = %q, key = %q }
rdma = { devices = [%q], trusted_networks = ["192.0.2.0/24"] }
`, dir, sock, files.CA, files.Cert, files.Key, card)
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log := &logText{}
	cmd := exec.CommandContext(t.Context(), program, "--config", settings)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said string
	ctl := func(args ...string) string {
		// fails while the daemon starts
		out, _ := exec.CommandContext(t.Context(), "cgn-ctl", append(args, "--sock", sock)...).CombinedOutput()
		said = string(out)
		return said
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s\n%s", said, log)
		}
	})
	awaitThat(t, "the card is open", func() bool {
		return strings.Contains(ctl("rdma", "check"), card) && strings.Contains(said, "open")
	})
	if ctl("rdma", "release", card); !strings.Contains(said, card+" is closed") {
		t.Error(said)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(log.String(), "a card is used for RDMA") {
		t.Error(err)
	}
}
