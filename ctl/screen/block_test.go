package screen

import (
	"strings"
	"testing"
)

func TestBlockStaysAtTheEnd(t *testing.T) {
	var out strings.Builder
	s := NewBlock(&out)
	s.Paint("a\nb\n")
	if _, err := s.Write([]byte("log\n")); err != nil {
		t.Fatal(err)
	}
	s.Paint("c\n")
	up := "\x1b[A\x1b[A\r\x1b[J"
	if got := out.String(); got != "a\nb\n"+up+"log\na\nb\n"+up+"c\n" {
		t.Errorf("got %q", got)
	}
}
