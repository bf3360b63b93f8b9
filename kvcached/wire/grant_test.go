package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

// goldenEnd and goldenBlock are values in the golden file, with bytes in hexadecimal.
type goldenEnd struct {
	GID           string
	QPN, PSN, MTU uint32
	Reads         uint32
}

type goldenBlock struct {
	Status            Status
	CRC               uint32
	Length            uint64
	Parent, Key, Attr string
	Expires           int64
	Parts             []Window
}

func endsOf(t *testing.T, in []goldenEnd) (out []End) {
	for _, g := range in {
		e := End{QPN: g.QPN, PSN: g.PSN, MTU: g.MTU, Reads: g.Reads}
		copy(e.GID[:], unhex(t, g.GID))
		out = append(out, e)
	}
	return out
}

func blocksOf(t *testing.T, in []goldenBlock) []GrantedBlock {
	out := make([]GrantedBlock, len(in))
	for i, g := range in {
		if out[i].Status = g.Status; g.Status != OK {
			continue
		}
		out[i] = GrantedBlock{CRC: g.CRC, Length: g.Length, Expires: g.Expires, Key: unhex(t, g.Key),
			Attr: unhex(t, g.Attr)}
		copy(out[i].Parent[:], unhex(t, g.Parent))
		out[i].Parts = append(out[i].Parts, g.Parts...)
	}
	return out
}

// grantBody is body for the messages of Connect, Grant and Release.
func grantBody(t *testing.T, kind string, value, encoded []byte) (written []byte, want, back any, err error) {
	var v struct {
		Session, Grant            uint64
		GrantMS, IdleMS, Most, MS uint32
		CRC                       uint32
		Ends                      []goldenEnd
		Probes                    []Window
		Done, Grants              []uint64
		Addrs                     []goldenAddr
		Blocks                    []goldenBlock
		End                       bool
	}
	decode(t, value, &v)
	numbers := func(in []uint64) []uint64 { return append([]uint64(nil), in...) }
	switch kind {
	case "connection":
		c := &Connection{endsOf(t, v.Ends)}
		written, want = c.Append(nil), c
		back, err = ParseConnection(encoded)
	case "connected":
		c := &Connected{v.Session, v.GrantMS, v.IdleMS, v.Most, v.CRC, endsOf(t, v.Ends), v.Probes}
		written, want = c.Append(nil), c
		back, err = ParseConnected(encoded, len(v.Ends))
	case "wanted":
		w := &Wanted{v.Session, numbers(v.Done), addrsOf(t, v.Addrs)}
		written, want = w.Append(nil), w
		back, err = ParseWanted(encoded)
	case "granted":
		l := &Granted{v.Grant, v.MS, blocksOf(t, v.Blocks)}
		written, want = l.Append(nil), l
		back, err = ParseGranted(encoded, len(l.Blocks), 2)
	case "returned":
		r := &Returned{v.Session, numbers(v.Grants), v.End}
		written, want = r.Append(nil), r
		back, err = ParseReturned(encoded)
	}
	return written, want, back, err
}

func TestGrantedRefused(t *testing.T) {
	le := binary.LittleEndian
	count := func(n uint64) []byte { return le.AppendUint64(nil, n) }
	behind := func(zeros int, n uint64) []byte { return append(make([]byte, zeros), count(n)...) }
	connection := func(b []byte) error { _, err := ParseConnection(b); return err }
	connected := func(c Connected, rails int) error { _, err := ParseConnected(c.Append(nil), rails); return err }
	wanted := func(b []byte) error { _, err := ParseWanted(b); return err }
	granted := func(e GrantedBlock) error {
		_, err := ParseGranted((&Granted{Grant: 1, Blocks: []GrantedBlock{e}}).Append(nil), 1, 2)
		return err
	}
	grantedBytes := func(b []byte, n int) error { _, err := ParseGranted(b, n, 2); return err }
	returned := func(b []byte) error { _, err := ParseReturned(b); return err }
	part := func(rail uint32, n uint64) Window { return Window{Rail: rail, Length: n} }
	for name, c := range map[string]struct{ err, want error }{
		"too many rails":        {connection(count(MaxRails + 1)), TooLarge},
		"ends missing":          {connection(count(2)), BadFrame},
		"bytes left":            {connection(append(count(0), 1)), BadFrame},
		"other rails":           {connected(Connected{Ends: make([]End, 1), Probes: make([]Window, 1)}, 2), BadFrame},
		"probes missing":        {connected(Connected{Ends: make([]End, 1)}, 1), BadFrame},
		"probe of another rail": {connected(Connected{Ends: make([]End, 1), Probes: []Window{part(1, 1)}}, 1), BadFrame},
		"endless probe":         {connected(Connected{Ends: make([]End, 1), Probes: []Window{part(0, MaxProbe+1)}}, 1), BadFrame},
		"too many grants":       {wanted(behind(8, MaxDone+1)), TooLarge},
		"grants missing":        {wanted(behind(8, 2)), BadFrame},
		"too many addresses":    {wanted(behind(16, MaxGrant+1)), TooLarge},
		"addresses missing":     {wanted(behind(16, 1)), BadFrame},
		"wanted cut":            {wanted(make([]byte, 5)), BadFrame},
		"too many blocks":       {grantedBytes(behind(12, MaxGrant+1), 1), TooLarge},
		"of another question":   {grantedBytes(behind(12, 0), 1), BadFrame},
		"blocks missing":        {grantedBytes(behind(12, 1), 1), BadFrame},
		"granted cut":           {grantedBytes(make([]byte, 12), 0), BadFrame},
		"long key":              {granted(GrantedBlock{Key: make([]byte, block.MaxKey+1)}), BadFrame},
		"long attributes":       {granted(GrantedBlock{Attr: make([]byte, block.MaxAttr+1)}), BadFrame},
		"too many parts":        {granted(GrantedBlock{Parts: make([]Window, MaxRails+1)}), TooLarge},
		"no parts":              {granted(GrantedBlock{Length: 1}), BadFrame},
		"too few bytes":         {granted(GrantedBlock{Length: 2, Parts: []Window{part(0, 1)}}), BadFrame},
		"too many bytes":        {granted(GrantedBlock{Length: 2, Parts: []Window{part(0, 1), part(1, 2)}}), BadFrame},
		"a part of nothing":     {granted(GrantedBlock{Length: 1, Parts: []Window{part(0, 0), part(0, 1)}}), BadFrame},
		"a rail too many":       {granted(GrantedBlock{Length: 1, Parts: []Window{part(2, 1)}}), BadFrame},
		"a huge block":          {granted(GrantedBlock{Length: MaxBody + 1, Parts: []Window{part(0, MaxBody+1)}}), BadFrame},
		"returned too many":     {returned(behind(8, MaxDone+1)), TooLarge},
		"returned cut":          {returned(make([]byte, 16)), BadFrame},
		"neither":               {returned(append(make([]byte, 16), 2)), BadFrame},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}

// TestGrantedSize compares Size with the encoded length. The test also checks that MaxSmall holds
// an answer with MaxGrant blocks without keys.
func TestGrantedSize(t *testing.T) {
	e := GrantedBlock{Length: 8, Key: []byte("key"), Attr: []byte("a"), Parts: make([]Window, MaxRails)}
	for _, e := range []GrantedBlock{e, {}, {Status: Miss, Key: e.Key}} {
		if n := len(e.append(nil)); n != e.Size() {
			t.Errorf("%d bytes, not %d", n, e.Size())
		}
	}
	all := Granted{Blocks: make([]GrantedBlock, MaxGrant)}
	for i := range all.Blocks {
		all.Blocks[i].Parts = e.Parts
	}
	if n := len(all.Append(nil)); n > MaxSmall {
		t.Error(n, "bytes")
	}
	if Connect.Reads() || Grant.Reads() || Release.Reads() || !Connect.Grants() || !Grant.Grants() ||
		!Release.Grants() ||
		Get.Grants() {
		t.Error("an operation of grants counts as a read")
	}
}

// fuzzGrants is the part of FuzzBodies for Connect, Grant and Release.
func fuzzGrants(t *testing.T, data []byte) {
	check := func(what string, err error, again func() []byte) {
		if err == nil && !bytes.Equal(again(), data) {
			t.Errorf("%s: %s is written as %s", what, hex.EncodeToString(data), hex.EncodeToString(again()))
		}
	}
	c, err := ParseConnection(data)
	check("connection", err, func() []byte { return c.Append(nil) })
	w, err := ParseWanted(data)
	check("wanted", err, func() []byte { return w.Append(nil) })
	r, err := ParseReturned(data)
	check("returned", err, func() []byte { return r.Append(nil) })
	for n := range 5 {
		a, err := ParseConnected(data, n)
		check("connected", err, func() []byte { return a.Append(nil) })
		l, err := ParseGranted(data, n, 2)
		check("granted", err, func() []byte { return l.Append(nil) })
	}
}
