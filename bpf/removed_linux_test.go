package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
)

// TestRemoved: a set reports its removed pins, and Load makes it count again.
func TestRemoved(t *testing.T) {
	h := newHost(t)
	s := h.load()
	if err := s.Removed(); err != nil {
		t.Errorf("all is there: %v", err)
	}
	link := filepath.Join(h.root, linksDir, "skb_in")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := s.Removed(); !errors.Is(err, errRemoved) {
		t.Errorf("a hook is not attached: %v", err)
	}
	if err := h.load().Removed(); err != nil || s.Removed() != nil {
		t.Errorf("attached again: %v, %v", err, s.Removed())
	}
	if _, err := Clean(h.root); err != nil {
		t.Fatal(err)
	}
	if err := s.Removed(); !errors.Is(err, errRemoved) {
		t.Errorf("after Clean: %v", err)
	}
	again := h.load()
	if err := again.Removed(); err != nil {
		t.Errorf("loaded anew: %v", err)
	}
	if err := s.Removed(); !errors.Is(err, errReplaced) {
		t.Errorf("the maps are others: %v", err)
	}
}

// TestRemovedByAnotherVersion: Load with Keep does not remove a map that another version has put in
// place of ours.
func TestRemovedByAnotherVersion(t *testing.T) {
	h := newHost(t)
	s := h.load()
	other, err := Load(Options{Root: h.root, Cgroup: h.cgroup, change: func(all *ebpf.CollectionSpec) {
		all.Maps["cgn_run_delay"].MaxEntries = 2
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := s.Removed(); !errors.Is(err, errReplaced) {
		t.Errorf("replaced: %v", err)
	}
	if _, err := Load(Options{Root: h.root, Cgroup: h.cgroup, Keep: true}); err == nil {
		t.Error("it was replaced in turn")
	}
	if err := other.Removed(); err != nil {
		t.Errorf("the other version's: %v", err)
	}
}

// TestCleanAmongLoaders: concurrent calls of Clean and Load do not make each other fail.
func TestCleanAmongLoaders(t *testing.T) {
	h := newHost(t)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range 4 {
				s, err := Load(Options{Root: h.root, Cgroup: h.cgroup})
				if err != nil {
					t.Error(err)
					return
				}
				_ = s.Close()
			}
		})
	}
	all.Go(func() {
		for range 20 {
			if _, err := Clean(h.root); err != nil {
				t.Error(err)
			}
			yield()
		}
	})
	all.Wait()
}

// TestCleanKeepsAFolder: Clean does not remove a root folder that its user may not make again.
func TestCleanKeepsAFolder(t *testing.T) {
	h := newHost(t)
	h.load()
	if err := os.Chown(h.root, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if n, err := Clean(h.root); n == 0 || err != nil {
		t.Error(n, err)
	}
	entries, err := os.ReadDir(h.root)
	if err != nil || len(entries) != 0 {
		t.Error(entries, err)
	}
}
