package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cognitora/dataplane/kv/block"
)

// TestNumbers fails if the number or name of an operation or status changes.
func TestNumbers(t *testing.T) {
	ops := "ping get put stat delete locate announce expire - - - - connect grant release purge"
	for i, name := range strings.Fields(ops) {
		if op := Op(i + 1); op.Known() == (name == "-") || op.Known() && op.String() != name {
			t.Errorf("%d is %s", i+1, op)
		}
	}
	statuses := "ok miss busy too_large quota forbidden bad_frame unsupported_version unknown_op corrupt deadline " +
		"replay_refused internal by_stream"
	for i, name := range strings.Fields(statuses) {
		if s := Status(i); s.String() != name {
			t.Errorf("%d is %s", i, s)
		}
	}
	if Op(17).Known() || Op(0).Known() || Op(200).String() != "op 200" || Status(99).Error() != "kv: status 99" {
		t.Error("what is unknown has no name")
	}
	if len((&Frame{}).Append(nil)) != fixedHead || MaxHead > len(Reader{}.buf) {
		t.Error("a head may be longer than what the reader reads ahead")
	}
}

func TestParseRefused(t *testing.T) {
	base := Frame{Version: Version, Op: Get, Namespace: []byte("n"), Key: []byte("k"), Attr: []byte("a")}
	for name, c := range map[string]struct {
		change func(f *Frame)
		want   error
	}{
		"version 0":       {func(f *Frame) { f.Version = 0 }, UnsupportedVersion},
		"version 2":       {func(f *Frame) { f.Version = 2 }, UnsupportedVersion},
		"long namespace":  {func(f *Frame) { f.Namespace = make([]byte, block.MaxNamespace+1) }, BadFrame},
		"long key":        {func(f *Frame) { f.Key = make([]byte, block.MaxKey+1) }, BadFrame},
		"long attributes": {func(f *Frame) { f.Attr = make([]byte, block.MaxAttr+1) }, BadFrame},
		"long body":       {func(f *Frame) { f.Body = MaxBody + 1 }, TooLarge},
		"endless body":    {func(f *Frame) { f.Body = math.MaxUint64 }, TooLarge},
	} {
		f := base
		c.change(&f)
		var got Frame
		if _, err := got.Parse(f.Append(nil)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	huge := base.Append(nil)
	binary.LittleEndian.PutUint64(huge[40:], math.MaxUint64)
	if _, err := base.Parse(huge); !errors.Is(err, BadFrame) {
		t.Errorf("namespace of 2^64-1 bytes: %v", err)
	}
}

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		f    Frame
		want error
	}{
		"ping":                  {Frame{Op: Ping}, nil},
		"ping with a body":      {Frame{Op: Ping, Body: 1}, BadFrame},
		"get":                   {Frame{Op: Get, Offset: 5, Len: 6}, nil},
		"get with a body":       {Frame{Op: Get, Body: 6, Len: 6}, BadFrame},
		"get far beyond":        {Frame{Op: Get, Offset: math.MaxUint64}, BadFrame},
		"put":                   {Frame{Op: Put, Len: 7, Total: 7, Body: 7}, nil},
		"put of a part":         {Frame{Op: Put, Len: 7, Total: 8, Body: 7}, BadFrame},
		"put with another body": {Frame{Op: Put, Len: 7, Total: 7, Body: 8}, BadFrame},
		"put with a stamp":      {Frame{Op: Put, Len: 7, Total: 7, Body: 7, Offset: 1}, nil},
		"purge":                 {Frame{Op: Purge, Body: MaxPurges}, nil},
		"purge of too much":     {Frame{Op: Purge, Body: MaxPurges + 1}, TooLarge},
		"a retired operation":   {Frame{Op: 9}, UnknownOp},
		"stat":                  {Frame{Op: Stat, Body: 8}, nil},
		"grant":                 {Frame{Op: Grant, Body: 8}, nil},
		"grant of everything":   {Frame{Op: Grant, Body: MaxSmall + 1}, TooLarge},
		"stat of everything":    {Frame{Op: Stat, Body: MaxSmall + 1}, TooLarge},
		"no operation":          {Frame{}, UnknownOp},
		"a later operation":     {Frame{Op: 17}, UnknownOp},
		"an answer":             {Frame{Op: Ping, Status: Miss}, BadFrame},
	} {
		if err := c.f.Check(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheckAnswer(t *testing.T) {
	ask := Frame{Op: Get, Request: 9, Offset: 10, Len: 20}
	for name, c := range map[string]struct {
		f    Frame
		want error
	}{
		"as asked":        {Frame{Op: Get, Request: 9, Offset: 10, Len: 20, Body: 20, Total: 30}, nil},
		"block is short":  {Frame{Op: Get, Request: 9, Offset: 10, Len: 5, Body: 5, Total: 15}, nil},
		"missed":          {Frame{Op: Get, Request: 9, Status: Miss}, nil},
		"another request": {Frame{Op: Get, Request: 8}, BadFrame},
		"another op":      {Frame{Op: Put, Request: 9}, BadFrame},
		"elsewhere":       {Frame{Op: Get, Request: 9, Offset: 11, Len: 19, Body: 19, Total: 30}, BadFrame},
		"too much":        {Frame{Op: Get, Request: 9, Offset: 10, Len: 21, Body: 21, Total: 31}, BadFrame},
		"too little":      {Frame{Op: Get, Request: 9, Offset: 10, Len: 19, Body: 19, Total: 31}, BadFrame},
		"nothing there":   {Frame{Op: Get, Request: 9, Offset: 10, Total: 4}, nil},
		"beyond the end":  {Frame{Op: Get, Request: 9, Offset: 10, Len: 20, Body: 20, Total: 29}, BadFrame},
		"no such block":   {Frame{Op: Get, Request: 9, Offset: 10, Total: math.MaxUint64}, BadFrame},
		"another body":    {Frame{Op: Get, Request: 9, Offset: 10, Len: 20, Body: 19, Total: 30}, BadFrame},
	} {
		if err := c.f.CheckAnswer(&ask); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	small := Frame{Op: Stat, Body: MaxSmall + 1}
	if err := small.CheckAnswer(&Frame{Op: Stat}); !errors.Is(err, TooLarge) {
		t.Error("an answer to Stat of any length:", err)
	}
}

func TestRange(t *testing.T) {
	payload := []byte("0123456789")
	for want, f := range map[string]Frame{
		"0123456789": {}, "89": {Offset: 8}, "345": {Offset: 3, Len: 3}, "9": {Offset: 9, Len: 5}, "": {Offset: 11, Len: 1},
	} {
		if got := string(f.Range(payload)); got != want {
			t.Errorf("%+v has %q, want %q", f, got, want)
		}
	}
}

func TestBodiesRefused(t *testing.T) {
	le := binary.LittleEndian
	count := func(n uint64) []byte { return le.AppendUint64(nil, n) }
	addrs := func(b []byte) error { _, err := ParseAddrs(b, nil); return err }
	locations := func(b []byte) error { _, err := ParseLocations(b, 1); return err }
	announced := func(b []byte) error { _, err := ParseAnnouncement(b); return err }
	ordered := func(b []byte) error { _, err := ParseOrder(b); return err }
	replied := func(b []byte) error { _, err := ParseReply(b); return err }
	badIndex := Locations{Hosts: []string{"a"}, Holders: [][]Holder{{{Host: 1}}}}
	many := Locations{Hosts: []string{"a"}, Holders: [][]Holder{make([]Holder, MaxHolders+1)}}
	two := Locations{Holders: make([][]Holder, 2)}
	for name, c := range map[string]struct{ err, want error }{
		"too many addresses":  {addrs(count(MaxBatch + 1)), TooLarge},
		"no addresses at all": {addrs(nil), BadFrame},
		"addresses missing":   {addrs(count(1)), BadFrame},
		"bytes left":          {addrs(append(count(0), 1)), BadFrame},
		"infos missing":       {ParseInfos(nil, make([]Info, 1), false), BadFrame},
		"neither":             {ParseBools([]byte{2}, make([]bool, 1)), BadFrame},
		"bools missing":       {ParseBools(nil, make([]bool, 1)), BadFrame},
		"too many hosts":      {locations(count(MaxHosts + 1)), TooLarge},
		"host too long":       {locations(append(count(1), count(MaxHost+1)...)), BadFrame},
		"host not there":      {locations(badIndex.Append(nil)), BadFrame},
		"too many holders":    {locations(many.Append(nil)), TooLarge},
		"of another question": {locations(two.Append(nil)), BadFrame},
		"locations cut":       {locations(many.Append(nil)[:30]), BadFrame},
		"too many changes":    {announced(append(make([]byte, 24), count(MaxBatch+1)...)), TooLarge},
		"changes missing":     {announced(append(make([]byte, 24), count(1)...)), BadFrame},
		"announcement cut":    {announced(make([]byte, 20)), BadFrame},
		"expiries missing":    {ParseInfos(make([]byte, sizeInfo), make([]Info, 1), true), BadFrame},
		"too many texts":      {ordered(append(make([]byte, 24), count(MaxTexts+1)...)), TooLarge},
		"order cut":           {ordered(make([]byte, 31)), BadFrame},
		"order of nothing":    {ordered(make([]byte, 32)), BadFrame},
		"too many marks":      {replied(append(make([]byte, 8), count(MaxBatch+1)...)), TooLarge},
		"reply cut":           {replied(make([]byte, 16)), BadFrame},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}

func TestReader(t *testing.T) {
	heads, payload := corpus(t), bytes.Repeat([]byte("block"), 3000)
	var stream []byte
	for _, h := range heads {
		var f Frame
		if _, err := f.Parse(h); err != nil {
			t.Fatal(err)
		}
		f.Body = uint64(len(payload))
		stream = append(f.Append(stream), payload...)
	}
	for name, src := range map[string]io.Reader{
		"at once": bytes.NewReader(stream), "byte by byte": iotest.OneByteReader(bytes.NewReader(stream)),
		"late error": iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		var r Reader
		r.Reset(src)
		got := make([]byte, len(payload))
		for i := range heads {
			var f Frame
			if err := r.Next(&f); err != nil {
				t.Fatal(name, i, err)
			}
			if _, err := io.ReadFull(&r, got); err != nil || !bytes.Equal(got, payload) {
				t.Fatal(name, i, err)
			}
		}
		var f Frame
		if err := r.Next(&f); err != io.EOF || r.Buffered() != 0 {
			t.Error(name, err)
		}
	}
	var r Reader
	r.Reset(bytes.NewReader(heads[1][:50]))
	if err := r.Next(&Frame{}); err != io.ErrUnexpectedEOF {
		t.Error("cut:", err)
	}
}

func TestNoAllocation(t *testing.T) {
	heads := corpus(t)
	var f Frame
	buf := make([]byte, 0, MaxHead)
	addrs := make([]block.Addr, 0, 8)
	batch := AppendAddrs(nil, make([]block.Addr, 8))
	rubbish := append(binary.LittleEndian.AppendUint16(nil, 9), make([]byte, 400)...)
	if n := testing.AllocsPerRun(100, func() {
		for _, h := range heads {
			_, _ = f.Parse(h)
			buf = f.Append(buf[:0])
			_ = f.Check()
		}
		_, _ = f.Parse(rubbish)
		_, _ = ParseAddrs(batch, addrs)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkParse(b *testing.B) {
	head := corpus(b)[2]
	b.ReportAllocs()
	for b.Loop() {
		var f Frame
		if _, err := f.Parse(head); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	var f Frame
	if _, err := f.Parse(corpus(b)[2]); err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 0, MaxHead)
	b.ReportAllocs()
	for b.Loop() {
		buf = f.Append(buf[:0])
	}
}

// FuzzParse checks that a parsed head is encoded as the same bytes and that bounds hold.
func FuzzParse(f *testing.F) {
	for _, h := range corpus(f) {
		f.Add(h)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var fr Frame
		n, err := fr.Parse(data)
		if err != nil {
			if !errors.Is(err, ErrShort) && !errors.Is(err, BadFrame) && !errors.Is(err, UnsupportedVersion) &&
				!errors.Is(err, TooLarge) {
				t.Fatal(err)
			}
			return
		}
		if n > MaxHead || fr.Body > MaxBody || !bytes.Equal(fr.Append(nil), data[:n]) {
			t.Fatalf("%d bytes read as %+v", n, fr)
		}
		_, _ = fr.Check(), fr.CheckAnswer(&fr)
	})
}

// FuzzBodies checks that a parsed body is encoded as the same bytes.
func FuzzBodies(f *testing.F) {
	for _, c := range goldens(f).Bodies {
		f.Add(unhex(f, c.Hex))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if addrs, err := ParseAddrs(data, nil); err == nil && !bytes.Equal(AppendAddrs(nil, addrs), data) {
			t.Error("addresses")
		}
		if a, err := ParseAnnouncement(data); err == nil && !bytes.Equal(a.Append(nil), data) {
			t.Error("announcement")
		}
		if l, err := ParseLocations(data, 2); err == nil && !bytes.Equal(l.Append(nil), data) {
			t.Error("locations")
		}
		if r, err := ParseReceipt(data); err == nil && !bytes.Equal(r.Append(nil), data) {
			t.Error("receipt")
		}
		if o, err := ParseOrder(data); err == nil && !bytes.Equal(o.Append(nil), data) {
			t.Error("order")
		}
		if r, err := ParseReply(data); err == nil && !bytes.Equal(r.Append(nil), data) {
			t.Error("reply")
		}
		fuzzGrants(t, data)
		bools := make([]bool, len(data))
		if err := ParseBools(data, bools); err == nil && !bytes.Equal(AppendBools(nil, bools), data) {
			t.Error("bools")
		}
	})
}
