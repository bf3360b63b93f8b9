package architecture

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSignalTouchesFiveFiles: a figure of the kernel that the policy picks by is named in at most
// five files. Generated code and the columns of cgn-ctl top do not count.
func TestSignalTouchesFiveFiles(t *testing.T) {
	var touched []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root &&
			(strings.HasPrefix(d.Name(), ".") || d.Name() == "deploy" || d.Name() == "perf"):
			return filepath.SkipDir
		case d.IsDir() || !slices.Contains([]string{".go", ".proto", ".md"}, filepath.Ext(path)):
			return nil
		case strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".pb.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.Contains(text, []byte("EngineWaitPct")) || bytes.Contains(text, []byte("engine_wait_pct")) {
			if rel, _ := filepath.Rel(root, path); rel != "cmd/cgn-ctl/top_nodes.go" {
				touched = append(touched, rel)
			}
		}
		return nil
	})
	if err != nil || len(touched) == 0 || len(touched) > 5 {
		t.Errorf("%v; engine_wait_pct is written of in %d files, at most 5: %v", err, len(touched), touched)
	}
}
