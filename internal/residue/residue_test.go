package residue

import (
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
)

type inner struct {
	n    int
	refs []*int
}

type outer struct {
	mu    sync.Mutex
	name  string
	done  func() int
	next  *outer
	parts [2]inner
	text  []byte
	from  io.Reader
	err   error
	kept  []byte
}

func TestMarksAreFound(t *testing.T) {
	o := outer{name: "", next: nil, from: nil, err: nil, parts: [2]inner{{n: 0}}}
	o.mu.Lock() // the lock stays unchanged
	Mark(&o, []string{"kept"}, strings.NewReader("x"))
	want := []string{
		"name", "done", "next", "parts[0].n", "parts[0].refs", "parts[1].n", "parts[1].refs", "text", "from", "err",
	}
	if got := Left(&o); !slices.Equal(got, want) {
		t.Errorf("marked: %v, want %v", got, want)
	}
	if o.done() != 0 || o.kept != nil {
		t.Error("a marked function cannot be called, or what is to be skipped is marked")
	}
	refs, text := o.parts[1].refs[:0], o.text[:0]
	o = outer{text: text}
	o.parts[1].refs = refs
	if got := Left(&o); !slices.Equal(got, []string{"parts[1].refs"}) {
		t.Errorf("pointers behind the end are not found: %v", got)
	}
	if got := Left(&o, "parts[1]"); got != nil {
		t.Errorf("what is to be skipped is looked at: %v", got)
	}
}

func TestFieldsAreCounted(t *testing.T) {
	if over := Fields(&outer{}, 8); len(over) != 1 || !strings.Contains(over[0], "outer has 9 fields") {
		t.Errorf("%v", over)
	}
	if over := Fields(outer{}, 9); over != nil {
		t.Errorf("%v", over)
	}
}
