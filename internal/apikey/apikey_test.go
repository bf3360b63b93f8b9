package apikey

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	for text, want := range map[string]string{
		"sk-1": "sk-1", " sk-1\r\n": "sk-1", "": "", "\n": "", "a b": "", "a\nb": "", "p\u00e4ss": "", "a\x00b": "",
		strings.Repeat("k", maxBytes): strings.Repeat("k", maxBytes), strings.Repeat("k", maxBytes+1): "",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Read(file)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%.20q: %.20q, %v", text, got, err)
		}
	}
	if _, err := Read(file + "-not"); err == nil {
		t.Error("a file that is not there is read")
	}
}
