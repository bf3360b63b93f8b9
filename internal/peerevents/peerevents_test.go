package peerevents

import (
	"bytes"
	"net/netip"
	"reflect"
	"testing"
	"time"
)

var messages = []Message{
	{Type: Hello, Version: Version},
	{Type: Welcome, Version: Version, Layout: 1<<63 + 5},
	{Type: Rejected, Reason: "not you"},
	{Type: Watch, Peers: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("[fd00::1]:8000")}},
	{Type: Watch},
	{Type: Told, Event: Event{Kind: Timeout, Peer: netip.MustParseAddrPort("10.0.0.1:80"), LocalPort: 50000, Timeouts: 2, Age: 17 * time.Microsecond}},
	{Type: Alive, Beat: Beat{Lost: 1, Ring: 2, LeftOut: 3}},
}

func frameOf(t testing.TB, m *Message) []byte {
	t.Helper()
	b, err := Append(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFrames(t *testing.T) {
	for _, want := range messages {
		frame := frameOf(t, &want)
		if n, err := Size(frame[:2]); n != len(frame) || err != nil {
			t.Errorf("%+v: %d bytes, %v", want, n, err)
		}
		var got Message
		if err := Parse(frame, &got); err != nil {
			t.Errorf("%+v: %v", want, err)
		}
		if len(got.Peers) == 0 {
			got.Peers = nil
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
		for n := range frame {
			if Parse(frame[:n], &got) == nil {
				t.Errorf("%+v: %d of %d bytes are taken for a frame", want, n, len(frame))
			}
		}
	}
}

// TestOtherVersions: a peer of another version gets an answer, whatever else its greeting contains.
func TestOtherVersions(t *testing.T) {
	for _, kind := range []Type{Hello, Welcome} {
		frame := append(frameOf(t, &Message{Type: kind, Version: Version + 1}), "and more"...)
		frame[1] += 8
		var m Message
		if err := Parse(frame, &m); err != nil || m.Version != Version+1 {
			t.Errorf("%+v, %v", m, err)
		}
	}
}

func TestBounds(t *testing.T) {
	if _, err := Append(nil, &Message{Type: Watch, Peers: make([]netip.AddrPort, MaxPeers+1)}); err == nil {
		t.Error("too many peers are sent")
	}
	full := frameOf(t, &Message{Type: Watch, Peers: make([]netip.AddrPort, MaxPeers)})
	if len(full) != maxFrame {
		t.Errorf("%d bytes", len(full))
	}
	for _, size := range [][]byte{{0, 0}, {0xff, 0xff}, {byte((maxFrame - 1) >> 8), byte((maxFrame - 1) & 255)}} {
		if n, err := Size(size); err == nil {
			t.Errorf("%x: %d", size, n)
		}
	}
}

// FuzzParse: a parsed frame is written and parsed again as the same message.
func FuzzParse(f *testing.F) {
	for i := range messages {
		f.Add(frameOf(f, &messages[i]))
	}
	f.Add([]byte{0, 1, 9})
	f.Fuzz(func(t *testing.T, frame []byte) {
		var m, again Message
		if err := Parse(frame, &m); err != nil {
			return
		}
		first, err := Append(nil, &m)
		if err != nil {
			t.Fatal(err)
		}
		if (m.Type == Hello || m.Type == Welcome) && m.Version != Version {
			return // only the version of these is parsed
		}
		if err := Parse(first, &again); err != nil {
			t.Fatalf("%x: %v", first, err)
		}
		if second, err := Append(nil, &again); err != nil || !bytes.Equal(first, second) {
			t.Errorf("%x, then %x: %v", first, second, err)
		}
	})
}
