//go:build linux

package frame

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"golang.org/x/sys/unix"
)

func someAddr(n byte) *block.Addr {
	a := &block.Addr{Layer: 31}
	for i := range a.Digest {
		a.Digest[i], a.Model[i] = n+byte(i), 0x80+n+byte(i)
	}
	return a
}

func build(h Header, parts ...func([]byte) []byte) []byte {
	b := Append(nil, h)
	for _, p := range parts {
		b = p(b)
	}
	return End(b, 0)
}

// frames returns one frame of each kind. Every field has a value of its own.
func frames() (requests, answers map[string][]byte) {
	hello := Hello{Min: 1, Max: 2, Have: 0x0102030405060708}
	copy(hello.Name[:], "engine")
	addr := func(b []byte) []byte { return AppendAddr(b, someAddr(1)) }
	id := func(b []byte) []byte { return le.AppendUint64(b, 0x1100000022) }
	commit := Commit{Segment: 3, Flags: Durable | CheckCRC, Offset: 4096, Length: 1 << 20, CRC: 0xdeadbeef, Layer: 7,
		Expires: 1767225600000, Digest: someAddr(2).Digest, Parent: someAddr(3).Digest,
		Namespace: []byte("kv1;m;r;d;l;16;1.0;1.0;")}
	named := commit
	named.Namespace, named.Names = []byte("kv1;m;r;d;l;48;1.0;1.0;"), []byte("name-onename-two")
	requests = map[string][]byte{
		"hello": build(Header{Op: OpHello, Seq: 1}, func(b []byte) []byte { return AppendHello(b, &hello) }),
		"get": build(Header{Op: OpGet, Count: 2, Seq: 2}, addr, func(b []byte) []byte {
			return AppendAddr(b, someAddr(9))
		}),
		"release": build(Header{Op: OpRelease, Count: 1}, id),
		"renew":   build(Header{Op: OpRenew, Count: 1, Seq: 3}, id),
		"touch":   build(Header{Op: OpTouch, Count: 1}, addr),
		"stat":    build(Header{Op: OpStat, Count: 1, Seq: 4}, addr),
		"stage":   build(Header{Op: OpStage, Seq: 5}, func(b []byte) []byte { return le.AppendUint64(b, 1<<20) }),
		"unstage": build(Header{Op: OpUnstage}, func(b []byte) []byte { return le.AppendUint32(b, 3) }),
		"commit": build(Header{Op: OpCommit, Count: uint16(len(commit.Namespace)), Seq: 6},
			func(b []byte) []byte { return AppendCommit(b, &commit) }),
		"commit with names": build(Header{Op: OpCommit, Count: uint16(named.Entries()), Seq: 13},
			func(b []byte) []byte { return AppendCommit(b, &named) }),
		"delete": build(Header{Op: OpDelete, Count: 1, Seq: 7}, addr),
		"pin": build(Header{Op: OpPin, Count: 1, Seq: 8}, func(b []byte) []byte {
			return le.AppendUint64(b, 1767225600000)
		}, addr),
		"unpin": build(Header{Op: OpUnpin, Count: 1, Seq: 9}, addr),
		"ping":  build(Header{Op: OpPing, Seq: 10}),
		"know": build(Header{Op: OpKnow, Count: uint16(len(commit.Namespace)), Seq: 12},
			func(b []byte) []byte { return append(b, commit.Namespace...) }),
		"read": build(Header{Op: OpRead, Count: uint16(len("node-1") + len(commit.Namespace)), Seq: 14},
			func(b []byte) []byte {
				return AppendRead(b, &Read{Node: []byte("node-1"), Namespace: commit.Namespace})
			}),
		"read no longer": build(Header{Op: OpRead, Count: uint16(len("n") + len(commit.Namespace)), Seq: 15},
			func(b []byte) []byte {
				return AppendRead(b, &Read{End: true, Node: []byte("n"), Namespace: commit.Namespace})
			}),
	}
	return requests, answerFrames()
}

func answerFrames() map[string][]byte {
	welcome := Welcome{Version: 1, Attached: true, MaxLeases: 4096, Instance: 0x0807060504030201, ArenaSize: 1 << 30,
		LeaseNS: 5e9, NowNS: 123456789, MaxLeased: 1 << 29, MaxStaging: 1 << 27, MaxValue: block.MaxPayload,
		MaxSegments: 16}
	grant := Grant{Lease: 0x1100000022, DeadlineNS: 5123456789, Offset: 1 << 21, Length: 1 << 20, CRC: 0xdeadbeef}
	info := Info{Length: 1 << 20, CRC: 0xdeadbeef, Uses: 5, Tiers: 3}
	return map[string][]byte{
		"hello": build(Header{Op: OpHello, Seq: 1}, func(b []byte) []byte { return AppendWelcome(b, &welcome) }),
		"get": build(Header{Op: OpGet, Count: 2, Seq: 2}, func(b []byte) []byte { return AppendGrant(b, &grant) },
			func(b []byte) []byte { return AppendGrant(b, &Grant{Status: StatusMiss}) }),
		"renew": build(Header{Op: OpRenew, Count: 1, Seq: 3}, func(b []byte) []byte {
			return le.AppendUint64(b, 5123456789)
		}),
		"stat":   build(Header{Op: OpStat, Count: 1, Seq: 4}, func(b []byte) []byte { return AppendInfo(b, &info) }),
		"stage":  build(Header{Op: OpStage, Seq: 5}, func(b []byte) []byte { return AppendStaged(b, 3, 1<<20) }),
		"commit": build(Header{Op: OpCommit, Seq: 6}, func(b []byte) []byte { return AppendInfo(b, &info) }),
		"delete": build(Header{Op: OpDelete, Count: 1, Seq: 7}, func(b []byte) []byte {
			return append(b, byte(StatusOK))
		}),
		"pin": build(Header{Op: OpPin, Count: 1, Seq: 8}, func(b []byte) []byte {
			return append(b, byte(StatusMiss))
		}),
		"unpin": build(Header{Op: OpUnpin, Count: 1, Seq: 9}, func(b []byte) []byte {
			return append(b, byte(StatusOK))
		}),
		"ping": build(Header{Op: OpPing, Seq: 10}),
		"know": build(Header{Op: OpKnow, Seq: 12}),
		"read": build(Header{Op: OpRead, Seq: 14}),
		"error": build(Header{Op: OpError, Status: StatusUnknownOp, Count: 5, Seq: 11}, func(b []byte) []byte {
			return append(b, "op 99"...)
		}),
	}
}

// TestGolden compares the layout with testdata/frames.json, on which clients in other languages
// depend.
func TestGolden(t *testing.T) {
	var golden struct{ Requests, Answers map[string]string }
	text, err := os.ReadFile("testdata/frames.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	requests, answers := frames()
	same := func(kind string, got map[string][]byte, want map[string]string) {
		if len(got) != len(want) {
			t.Errorf("%d %s, golden are %d", len(got), kind, len(want))
		}
		for name, b := range got {
			if hex.EncodeToString(b) != want[name] {
				t.Errorf("%s %s is\n%x, golden\n%s", kind, name, b, want[name])
			}
		}
	}
	same("request", requests, golden.Requests)
	same("answer", answers, golden.Answers)
}

func TestRoundTrip(t *testing.T) {
	requests, answers := frames()
	body := func(b []byte, parse func([]byte) (Header, []byte, error)) []byte {
		_, body, err := parse(b)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	if got := Addr(body(requests["get"], Request), 1); got != *someAddr(9) {
		t.Error(got)
	}
	if got := Addr(body(requests["pin"], Request)[8:], 0); got != *someAddr(1) {
		t.Error(got)
	}
	if h, err := ParseHello(body(requests["hello"], Request)); err != nil || h.Have != 0x0102030405060708 ||
		string(h.Name[:6]) != "engine" {
		t.Error(h, err)
	}
	for name, seq := range map[string]uint64{"commit": 6, "commit with names": 13} {
		commit, err := ParseCommit(body(requests[name], Request))
		if again := build(Header{Op: OpCommit, Count: uint16(commit.Entries()), Seq: seq}, func(b []byte) []byte {
			return AppendCommit(b, &commit)
		}); err != nil || !bytes.Equal(again, requests[name]) || commit.Flags != Durable|CheckCRC {
			t.Errorf("%s: %+v %v", name, commit, err)
		}
	}
	short := bytes.Clone(body(requests["commit with names"], Request))
	short[7] = 200 // names
	if _, err := ParseCommit(short); !errors.Is(err, &Error{Status: StatusBadFrame}) {
		t.Error("more names than bytes:", err)
	}
	welcome := ParseWelcome(body(answers["hello"], Answer))
	if again := build(Header{Op: OpHello, Seq: 1}, func(b []byte) []byte {
		return AppendWelcome(b, &welcome)
	}); !bytes.Equal(again, answers["hello"]) {
		t.Errorf("%+v", welcome)
	}
	grants := body(answers["get"], Answer)
	if g := ParseGrant(grants, 0); g != (Grant{0x1100000022, 5123456789, 1 << 21, 1 << 20, 0xdeadbeef, StatusOK}) ||
		ParseGrant(grants, 1).Status != StatusMiss {
		t.Error(g)
	}
	if i := ParseInfo(body(answers["stat"], Answer), 0); i != (Info{1 << 20, 0xdeadbeef, 5, 3, StatusOK}) {
		t.Error(i)
	}
	if id, size := ParseStaged(body(answers["stage"], Answer)); id != 3 || size != 1<<20 {
		t.Error(id, size)
	}
}

func TestRefused(t *testing.T) {
	ping := build(Header{Op: OpPing})
	for name, c := range map[string]struct {
		frame  []byte
		status Status
	}{
		"size below the header's":  {[]byte{15, 0, 0, 0}, StatusBadFrame},
		"oversized":                {[]byte{1, 0xa0, 0, 0}, StatusBadFrame},
		"unknown op":               {build(Header{Op: 99}), StatusUnknownOp},
		"an answer's op":           {build(Header{Op: OpError}), StatusUnknownOp},
		"a status in a request":    {build(Header{Op: OpPing, Status: 1}), StatusBadFrame},
		"entries where none are":   {build(Header{Op: OpPing, Count: 1}), StatusBadFrame},
		"fewer bytes than entries": {build(Header{Op: OpGet, Count: 1}), StatusBadFrame},
		"more bytes than entries":  {append(build(Header{Op: OpGet, Count: 0}), ping...)[:16], StatusOK},
		"too many entries":         {build(Header{Op: OpRelease, Count: MaxBatch + 1}, func(b []byte) []byte { return append(b, make([]byte, 8*(MaxBatch+1))...) }), StatusBadFrame},
	} {
		_, _, err := Request(c.frame)
		if c.status == StatusOK {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, &Error{Status: c.status}) {
			t.Errorf("%s: %v, not %v", name, err, c.status)
		}
	}
	for what, body := range map[string][]byte{"a node longer than the entries": {3, 0, 0, 0, 'a', 'b'},
		"an unknown flag": {1, 0, 2, 0, 'a', 'b'}} {
		if _, err := ParseRead(body); !errors.Is(err, &Error{Status: StatusBadFrame}) {
			t.Errorf("%s: %v", what, err)
		}
	}
	hello := build(Header{Op: OpHello}, func(b []byte) []byte { return AppendHello(b, &Hello{Min: 2, Max: 9}) })
	if _, err := ParseHello(hello[HeaderSize:]); !errors.Is(err, &Error{Status: StatusVersion}) {
		t.Error("a client of the future:", err)
	}
	hello[HeaderSize]++
	if _, err := ParseHello(hello[HeaderSize:]); !errors.Is(err, &Error{Status: StatusBadFrame}) {
		t.Error("another protocol:", err)
	}
}

// TestTruncated cuts each frame at each place. A part must never count as a frame.
func TestTruncated(t *testing.T) {
	requests, answers := frames()
	for name, b := range requests {
		for n := range b {
			if _, _, err := Request(b[:n]); err != ErrIncomplete {
				t.Errorf("%d bytes of %s: %v", n, name, err)
			}
		}
	}
	for name, b := range answers {
		for n := range b {
			if _, _, err := Answer(b[:n]); err != ErrIncomplete {
				t.Errorf("%d bytes of the answer to %s: %v", n, name, err)
			}
		}
	}
}

func TestLargestFitsInAFrame(t *testing.T) {
	if n := HeaderSize + 8 + MaxBatch*AddrSize; n > MaxFrame {
		t.Error(n)
	}
	if MaxBatch < block.MaxNamespace || MaxBatch < MaxText {
		t.Error("a text has more bytes than the count may say")
	}
}

func FuzzRequest(f *testing.F) {
	requests, answers := frames()
	for _, b := range requests {
		f.Add(b)
	}
	for _, b := range answers {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, body, err := Request(b); err == nil {
			visitRequest(t, h, body)
		}
		if h, body, err := Answer(b); err == nil {
			visitAnswer(h, body)
		}
	})
}

// visitRequest reads all parts of an accepted frame and writes it again.
func visitRequest(t *testing.T, h Header, body []byte) {
	again := Append(nil, h)
	switch h.Op {
	case OpHello:
		hello, err := ParseHello(body)
		if err != nil {
			return
		}
		again = AppendHello(again, &hello)
		copy(again[HeaderSize+12:], body[12:16]) // reserved
	case OpCommit:
		c, err := ParseCommit(body)
		if err != nil {
			return
		}
		again = AppendCommit(again, &c)
	case OpRead:
		r, err := ParseRead(body)
		if err != nil {
			return
		}
		again = AppendRead(again, &r)
	case OpGet, OpTouch, OpStat, OpDelete, OpUnpin:
		for i := range int(h.Count) {
			a := Addr(body, i)
			again = AppendAddr(again, &a)
			copy(again[len(again)-4:], body[(i+1)*AddrSize-4:]) // reserved
		}
	default:
		return
	}
	if !bytes.Equal(again[HeaderSize:], body) {
		t.Errorf("op %d: %x is written as %x", h.Op, body, again)
	}
}

func visitAnswer(h Header, body []byte) {
	switch h.Op {
	case OpHello:
		ParseWelcome(body)
	case OpStage:
		ParseStaged(body)
	case OpCommit:
		ParseInfo(body, 0)
	}
	for i := range int(h.Count) {
		switch h.Op {
		case OpGet:
			ParseGrant(body, i)
		case OpStat:
			ParseInfo(body, i)
		case OpRenew:
			Lease(body, i)
		}
	}
}

func TestAllocations(t *testing.T) {
	requests, _ := frames()
	room := make([]byte, 0, MaxFrame)
	a := someAddr(1)
	if n := testing.AllocsPerRun(100, func() {
		_, body, _ := Request(requests["get"])
		*a = Addr(body, 1)
		room = AppendAddr(Append(room[:0], Header{Op: OpGet, Count: 1}), a)
		room = End(AppendGrant(room, &Grant{Lease: 1}), 0)
	}); n != 0 {
		t.Error(n, "allocations")
	}
}

func TestMonotonic(t *testing.T) {
	var before, after unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &before)
	now := Monotonic()
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &after)
	if now < before.Nano() || now > after.Nano()+int64(time.Millisecond) {
		t.Error(before.Nano(), now, after.Nano())
	}
}

func BenchmarkRequest(b *testing.B) {
	requests, _ := frames()
	for b.Loop() {
		_, body, _ := Request(requests["get"])
		_ = Addr(body, 0)
	}
}
