package kvcached

import (
	"log/slog"
	"os"
	"testing"

	"github.com/cognitora/dataplane/internal/pki"
)

// TestOwnCertificates checks that the certificates are kept. New certificates are made if a crash
// has left only some of them.
func TestOwnCertificates(t *testing.T) {
	d := &Daemon{config: &Config{Daemon: DaemonConfig{Data: t.TempDir()}}, log: slog.New(slog.DiscardHandler)}
	read := func() (pki.Files, string) {
		t.Helper()
		files, err := d.ownCertificates()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pki.Load(files); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(files.Cert)
		if err != nil {
			t.Fatal(err)
		}
		return files, string(text)
	}
	_, first := read()
	files, again := read()
	if first != again {
		t.Error("a whole set was made anew")
	}
	if err := os.Remove(files.Key); err != nil {
		t.Fatal(err)
	}
	if _, third := read(); third == first {
		t.Error("a certificate without its key was kept")
	}
}
