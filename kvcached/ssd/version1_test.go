package ssd

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// unpack unpacks an archive of testdata.
func unpack(t *testing.T, name, dir string) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, filepath.Clean("/"+h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(to, 0o700)
		} else {
			var b []byte
			if b, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(to, b, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestVersion1 opens a directory that a killed program of format version 1 left. The last four of
// twelve keys, and of twelve blocks of tokens, were deleted, and the four before them replaced.
func TestVersion1(t *testing.T) {
	o := small(t.TempDir())
	o.Logger = quiet
	unpack(t, "version1.tar.gz", o.Dir)
	if v, err := Verify(ctx, VerifyOptions{Dir: o.Dir}); err != nil || v.Bad > 0 || v.Live != 16 {
		t.Fatalf("%+v %v", v, err)
	}
	if version, _, err := readFormat(&Options{Dir: o.Dir, fs: osFS{}}); err != nil || version != 1 {
		t.Fatal(version, err)
	}
	check := func(tier *Tier, deleted int) {
		t.Helper()
		for i := range 12 {
			v := [...]uint64{1, 2, 0}[i/4]
			if i < deleted {
				v = 0
			}
			if key, token := isNewest(t, tier, i, v); key != (v > 0) || token != (v > 0) {
				t.Fatalf("block %d: %v %v", i, key, token)
			}
		}
	}
	tier := open(t, o)
	check(tier, 0)
	<-tier.Ready()
	check(tier, 0)
	remove(t, tier, 0)
	mustClose(t, tier)
	if version, _, err := readFormat(&Options{Dir: o.Dir, fs: osFS{}}); err != nil || version != formatVersion {
		t.Fatal(version, err)
	}
	tier = open(t, o)
	<-tier.Ready()
	check(tier, 1)
	mustClose(t, tier)
}
