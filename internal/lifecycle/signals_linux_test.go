package lifecycle

import (
	"errors"
	"os"
	"syscall"
	"testing"
)

func TestWritesToAClosedPipeFailInForeground(t *testing.T) {
	s := ListenForeground(t.Context())
	defer s.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	old, err := syscall.Dup(2)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Dup3(old, 2, 0); _ = syscall.Close(old) }()
	if err := syscall.Dup3(int(w.Fd()), 2, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stderr.WriteString("x"); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("got %v", err)
	}
}
