package room

import "testing"

func TestRoom(t *testing.T) {
	r := New(100)
	if !r.Take(99) || r.Take(2) || !r.Take(1) || r.Used() != 100 {
		t.Error("the bound does not hold")
	}
	if r.Give(100); r.Used() != 0 {
		t.Errorf("%d bytes are left", r.Used())
	}
}
