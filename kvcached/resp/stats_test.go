package resp

import (
	"reflect"
	"sync/atomic"
	"testing"
)

// TestStatsOfOneValue looks at every field after a SET and a GET.
func TestStatsOfOneValue(t *testing.T) {
	addr, s, _ := start(t, Options{})
	p := dial(t, "tcp", addr)
	p.want("+OK\r\n", "SET", "k", "value")
	p.want("$5\r\nvalue\r\n", "GET", "k")
	want := map[string]uint64{"Connections": 1, "Accepted": 1, "Commands": 2, "Hits": 1, "Writes": 1, "BytesIn": 5,
		"BytesOut": 5}
	got := reflect.ValueOf(s.Stats())
	for i := range got.NumField() {
		name, n := got.Type().Field(i).Name, uint64(0)
		if f := got.Field(i); f.CanInt() {
			n = uint64(f.Int())
		} else {
			n = f.Uint()
		}
		if n != want[name] {
			t.Errorf("%s is %d, want %d", name, n, want[name])
		}
	}
}

// TestStatsHasEveryCounter sets every counter to a value of its own.
func TestStatsHasEveryCounter(t *testing.T) {
	s := &Server{}
	counters := reflect.ValueOf(&s.counters).Elem()
	for i := range counters.NumField() {
		(*atomic.Uint64)(counters.Field(i).Addr().UnsafePointer()).Store(uint64(i) + 1)
	}
	seen := map[uint64]bool{}
	got := reflect.ValueOf(s.Stats())
	for i := range got.NumField() {
		if f := got.Field(i); f.CanUint() {
			seen[f.Uint()] = true
		}
	}
	if delete(seen, 0); len(seen) != counters.NumField() {
		t.Errorf("%d of %d counters are told: %+v", len(seen), counters.NumField(), s.Stats())
	}
}
