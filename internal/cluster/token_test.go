package cluster

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTokenSurvivesARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	first, err := Token(dir)
	if err != nil || first == "" {
		t.Fatalf("%q, %v", first, err)
	}
	if again, err := Token(dir); err != nil || again != first {
		t.Errorf("%q, %v; want %q", again, err, first)
	}
	if other, err := Token(""); err != nil || other == first || other == "" {
		t.Errorf("without a directory: %q, %v", other, err)
	}
	if _, err := Token(filepath.Join(dir, TokenFile)); err == nil {
		t.Error("a file was taken for a directory")
	}
	if err := os.WriteFile(filepath.Join(dir, TokenFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if other, err := Token(dir); err != nil || other == first || other == "" {
		t.Errorf("of an empty file: %q, %v", other, err)
	}
}

// TestConnectTriesOn: Connect waits for an etcd that is not there only if it must authenticate.
func TestConnectTriesOn(t *testing.T) {
	nowhere := Config{Endpoints: []string{"127.0.0.1:1"}}
	c, err := Connect(t.Context(), nowhere, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal("without a user:", err)
	}
	c.Close()
	if _, err := Connect(t.Context(), Config{Username: "u"}, slog.Default()); err == nil {
		t.Error("no endpoint is no error")
	}
	nowhere.Username, nowhere.Password = "u", "p"
	ctx, cancel := context.WithCancel(t.Context())
	log := slog.New(slog.NewTextHandler(write(func(line string) {
		if !strings.Contains(line, "etcd not reached, trying on") {
			t.Error(line)
		}
		cancel()
	}), nil))
	if _, err := Connect(ctx, nowhere, log); !errors.Is(err, context.Canceled) {
		t.Error("with a user:", err)
	}
}

// write is the output of a log.
type write func(line string)

func (w write) Write(line []byte) (int, error) {
	w(string(line))
	return len(line), nil
}
