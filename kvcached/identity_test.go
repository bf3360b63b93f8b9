package kvcached

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
)

// TestReplacementCutShort: wherever a daemon that replaces its own certificates is killed, the next
// one has a whole set, the old one or the new one, and leaves nothing else behind.
func TestReplacementCutShort(t *testing.T) {
	steps := len(replacement(""))
	const inPlace = 6 // steps after which the new ones count
	for _, there := range []bool{false, true} {
		for done := range steps + 1 {
			t.Run(fmt.Sprintf("%d of %d steps, %v", done, steps, there), func(t *testing.T) {
				data := t.TempDir()
				dir := filepath.Join(data, "pki")
				files := pki.FilesIn(dir, pki.KVCached)
				d := &Daemon{config: &Config{Daemon: DaemonConfig{Data: data}}, log: slog.New(slog.DiscardHandler)}
				var before []byte
				if there {
					if _, err := d.ownCertificates(); err != nil {
						t.Fatal(err)
					}
					before = certificate(t, files)
				}
				for _, step := range replacement(dir)[:done] {
					if err := step(); err != nil {
						t.Fatal(err)
					}
				}
				if err := recoverCertificates(dir); err != nil {
					t.Fatal(err)
				}
				after := certificate(t, files)
				switch same := string(after) == string(before); {
				case done < inPlace && !same:
					t.Error("what was there before is not")
				case done >= inPlace && (same || after == nil):
					t.Error("the new certificates are not there")
				}
				if _, err := d.ownCertificates(); err != nil {
					t.Error("the next start:", err)
				}
				id, err := pki.Load(files)
				if err != nil || time.Until(id.NotAfter()) < renewBefore {
					t.Error("after the next start:", err)
				}
				if left, err := os.ReadDir(data); err != nil || len(left) != 1 {
					t.Errorf("left behind: %v, %v", left, err)
				}
			})
		}
	}
}

// certificate is what is in place; nil: nothing. A certificate that has no key, or another CA, is
// an error.
func certificate(t *testing.T, f pki.Files) []byte {
	t.Helper()
	text, err := os.ReadFile(f.Cert)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = pki.Load(f)
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}
