package metrics

import (
	"fmt"
	"sync"
	"testing"
)

// TestCountDoesNotAllocate counts for a tenant that is known, and for one of many that are not.
func TestCountDoesNotAllocate(t *testing.T) {
	all := New().Tenants
	all.Most = 2
	for _, name := range []string{"a", "b", "c"} {
		count := func() { all.Count(name, false, OK, Tokens{1, 1, 1}) }
		count()
		if n := testing.AllocsPerRun(100, count); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestTenantsAreBounded adds tenants at the same time.
func TestTenantsAreBounded(t *testing.T) {
	all := New().Tenants
	all.Most = 10
	var running sync.WaitGroup
	for i := range 100 {
		running.Go(func() { all.Count(fmt.Sprint("named-", i), true, OK, Tokens{}) })
	}
	running.Wait()
	for i := range 100 {
		running.Go(func() { all.Count(fmt.Sprint("own-", i), false, OK, Tokens{}) })
	}
	running.Wait()
	if now := all.table.Load(); len(now.all) != 10 || now.named != 5 || now.other == nil {
		t.Errorf("%d tenants, %d of them named by gateways", len(now.all), now.named)
	}
}

func BenchmarkCount(b *testing.B) {
	all := New().Tenants
	for b.Loop() {
		all.Count("acme", false, OK, Tokens{100, 50, 20})
	}
}
