//go:build linux && cgo && rdma

package verbs

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cognitora/dataplane/rdma"
)

const (
	killedSize  = 16 << 20
	killedTimes = 512 // times that one call reads the window, which takes an emulated card many seconds
	killedPairs = 3
	killedEnv   = "RDMA_OWNER" // set in the process that is killed
)

// side is the data of a pair that two processes exchange.
type side struct {
	End rdma.Endpoint
	Key rdma.Key
}

// killedOwner grants memory for its parent to read, until it is killed. killedOwner communicates
// over its input and its fourth file.
func killedOwner(t *testing.T) {
	d := opened(t)
	from := registeredIn(t, d, killedSize)
	fill(from, 7)
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.NewFile(3, "to the reader"))
	for i := range killedPairs {
		d.limit.Windows = i%2 == 0
		var reader rdma.Endpoint
		if err := in.Decode(&reader); err != nil {
			t.Fatal(err)
		}
		w := paired(t, d, rdma.PairOptions{})
		if err := w.Connect(reader); err != nil {
			t.Fatal(err)
		}
		if err := out.Encode(side{w.Local(), granted(t, w, from)[0].Key()}); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// TestOtherSideIsKilled: the owner's process is killed while several pairs have large reads in
// progress. All reads end with an error that says that the other side has gone.
func TestOtherSideIsKilled(t *testing.T) {
	if os.Getenv(killedEnv) != "" {
		killedOwner(t)
		return
	}
	const timeout = time.Second
	d := opened(t)
	child, in, out := ownerProcess(t)
	type outcome struct {
		err error
		at  time.Time
	}
	ends := make(chan outcome, killedPairs)
	var memory [][]byte
	var begin []func()
	for range killedPairs {
		into := registeredIn(t, d, killedSize)
		memory = append(memory, into)
		r := paired(t, d, rdma.PairOptions{Timeout: timeout})
		var other side
		if err := errors.Join(in.Encode(r.Local()), out.Decode(&other), r.Connect(other.End)); err != nil {
			t.Fatal(err)
		}
		begin = append(begin, func() {
			err := r.Read(within(t), slices.Repeat([]rdma.Read{{Into: into, From: other.Key}}, killedTimes))
			ends <- outcome{err, time.Now()}
		})
	}
	for _, read := range begin {
		go read() // a read ends after it has sent its outcome
	}
	begins(t, memory...) // soft-RoCE may finish one pair before it sends another's first packet
	if len(ends) != 0 {
		t.Fatal("a read ended before the owner was killed: ", (<-ends).err)
	}
	began := time.Now()
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	for range killedPairs {
		end := <-ends
		if !errors.Is(end.err, rdma.ErrUnreachable) && !errors.Is(end.err, rdma.ErrAccess) {
			t.Errorf("a read from a process that was killed ends with %v", end.err)
		}
		t.Logf("%v after %v", end.err, end.at.Sub(began).Round(time.Millisecond))
	}
	works(t, d)
}

// begins waits until at least one of several reads has written its first bytes into its memory,
// which was zero.
func begins(t *testing.T, into ...[]byte) {
	t.Helper()
	come := func(into []byte) bool {
		return atomic.LoadUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(into)))) != 0
	}
	for limit := within(t); !slices.ContainsFunc(into, come); runtime.Gosched() {
		if limit.Err() != nil {
			t.Fatal("a read does not begin")
		}
	}
}

func ownerProcess(t *testing.T) (child *exec.Cmd, in *json.Encoder, out *json.Decoder) {
	t.Helper()
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	child = exec.CommandContext(within(t), "/proc/self/exe", "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), killedEnv+"=1")
	child.Stderr, child.ExtraFiles = os.Stderr, []*os.File{to}
	stdin, err := child.StdinPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = to.Close()
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
		_ = from.Close()
	})
	return child, json.NewEncoder(stdin), json.NewDecoder(from)
}
