package ssd

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
)

// childDir passes the directory to the process that will be killed; childVersion passes the first
// version that it writes.
const (
	childDir     = "CGN_SSD_TEST_CHILD"
	childVersion = "CGN_SSD_TEST_VERSION"
)

const killBlocks, killWorkers = 64, 4

func killOptions(dir string) Options {
	o := small(dir)
	o.Logger, o.checkpointBytes = quiet, 1<<20
	return o
}

// child writes and deletes until it is killed. It prints each operation before and after: b <block>
// <version>, then a or d (durable) <block> <version>. Version 0 deletes.
func child(dir string) {
	tier, err := Open(ctx, killOptions(dir))
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	first, _ := strconv.ParseUint(os.Getenv(childVersion), 10, 64)
	var wg sync.WaitGroup
	for w := range killWorkers {
		wg.Go(func() {
			for v := first + uint64(w); ; v += killWorkers {
				if err := childStep(tier, w, v); err != nil {
					fmt.Println("error", err)
					os.Exit(1)
				}
			}
		})
	}
	wg.Wait()
}

func childStep(tier *Tier, w int, v uint64) error {
	i := rand.IntN(killBlocks/killWorkers)*killWorkers + w
	say := func(what string, v uint64) { _, _ = os.Stdout.WriteString(fmt.Sprintln(what, i, v)) }
	if rand.IntN(4) == 0 {
		say("b", absent)
		if _, err := tier.Delete(ctx, keyAddr(i)); err != nil {
			return err
		}
		say("d", absent)
		return nil
	}
	say("b", v)
	durable := rand.IntN(3) == 0
	if err := tier.Write(ctx, record(i), content(i, v, killSize(v)), durable); err != nil {
		return err
	}
	if durable {
		say("d", v)
	} else {
		say("a", v)
	}
	return nil
}

func killSize(v uint64) int { return int(v * 7919 % 40000) }

// TestKill kills a writing process again and again. Segments are reclaimed because little of them
// is live, but nothing needs to be evicted.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	m := newModel(killBlocks)
	version := uint64(1)
	for range rounds(5, 200) {
		version = m.kill(t, dir, version) + killWorkers
		tier := open(t, killOptions(dir))
		for v := range version {
			m.sizes[v] = killSize(v)
		}
		m.settle(t, tier)
		if rand.IntN(2) == 0 {
			<-tier.Ready()
			m.settle(t, tier)
		}
		if s := tier.Stats(); s.Corrupt > 0 {
			t.Fatalf("%+v", s)
		}
		mustClose(t, tier)
	}
	t.Logf("%d blocks checked, %d of them durable, %d others there, %d lost that were not durable, %d absent",
		m.counts.checked, m.counts.durable,
		m.counts.kept, m.counts.lost, m.counts.deleted)
}

// kill runs a child, kills it, and returns the highest version that the child has begun.
func (m *model) kill(t *testing.T, dir string, first uint64) (last uint64) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^$")
	cmd.Env = append(os.Environ(), childDir+"="+dir, childVersion+"="+strconv.FormatUint(first, 10))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	after := rand.IntN(2000)
	last = first
	for n := 0; lines.Scan(); n++ {
		if n == after {
			_ = cmd.Process.Kill()
		}
		var what string
		var i int
		var v uint64
		if k, _ := fmt.Sscan(lines.Text(), &what, &i, &v); k != 3 || i >= killBlocks {
			t.Fatal("the child said: ", lines.Text())
		}
		last = max(last, v)
		switch was := m.get(i); what {
		case "b":
			m.begin(i, v)
		case "d":
			m.done(i, was, v, v)
		case "a":
			later := []uint64{v}
			if slices.Contains(was.later, absent) {
				later = append(later, absent)
			}
			m.done(i, was, v, later...)
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return last
}
