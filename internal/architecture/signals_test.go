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

// TestSignalTouchesFiveFiles: a figure that the policy uses is named in at most five files. The
// test checks one figure of the kernel and one figure of the GPUs. Generated code and the columns
// of cgn-ctl top do not count.
func TestSignalTouchesFiveFiles(t *testing.T) {
	for _, names := range [][2]string{{"EngineWaitPct", "engine_wait_pct"}, {"SMPct", "sm_pct"}} {
		touched, err := naming(names)
		if err != nil || len(touched) == 0 || len(touched) > 5 {
			t.Errorf("%v; %s is written of in %d files, at most 5: %v", err, names[1], len(touched), touched)
		}
	}
}

// naming lists the hand-written files that contain one of the names.
func naming(names [2]string) (files []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
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
		rel, err := filepath.Rel(root, path)
		named := bytes.Contains(text, []byte(names[0])) || bytes.Contains(text, []byte(names[1]))
		if named && rel != "ctl/top/nodes.go" {
			files = append(files, rel)
		}
		return err
	})
	return files, err
}
