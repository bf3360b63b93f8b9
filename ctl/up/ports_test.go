package up

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
)

func TestReserve(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	other, err := reserve("--listen", busy.Addr().String(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if other.Addr().String() == busy.Addr().String() || !strings.HasPrefix(other.Addr().String(), "127.0.0.1:") {
		t.Errorf("got %s instead of %s", other.Addr(), busy.Addr())
	}
	var l local
	l.noteMoved("the S3 port", busy.Addr().String(), other)
	l.noteMoved("the S3 port", busy.Addr().String(), busy)
	if len(l.notes) != 1 || !strings.HasPrefix(l.notes[0], busy.Addr().String()+" is in use") ||
		!strings.HasSuffix(l.notes[0], ": the S3 port took "+other.Addr().String()+" instead") {
		t.Errorf("%q", l.notes)
	}
	_, err = reserve("--listen", busy.Addr().String(), true)
	if err == nil || !strings.Contains(err.Error(), "in use") || !strings.Contains(ctltest.Hint(err), "--listen") {
		t.Fatalf("got %v, hint %q", err, ctltest.Hint(err))
	}
	if _, statErr := os.Stat("/proc/net/tcp"); statErr == nil && !strings.Contains(err.Error(), "by ") {
		t.Errorf("the holder of the port should be named: %v", err)
	}
	if _, err := reserve("--listen", "nonsense", true); err == nil {
		t.Error("nonsense was accepted as an address")
	}
}
