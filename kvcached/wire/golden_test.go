package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

// golden is the form of testdata/frames.json. Other programs depend on that file, so it never
// changes.
type golden struct {
	Frames []struct {
		Name, Hex string
		Frame     map[string]any
	}
	Bodies []struct {
		Name, Kind, Hex string
		Value           json.RawMessage
	}
	Sums []struct{ Name, First, Second, Hex string }
}

func goldens(t testing.TB) (g golden) {
	text, err := os.ReadFile("testdata/frames.json")
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&g); err != nil {
		t.Fatal(err)
	}
	return g
}

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// corpus returns all golden heads as seeds for the tests of the parser.
func corpus(t testing.TB) (heads [][]byte) {
	for _, c := range goldens(t).Frames {
		heads = append(heads, unhex(t, c.Hex))
	}
	return heads
}

// number returns a field of a golden frame by its name in JSON.
func number(t *testing.T, f map[string]any, name string) uint64 {
	text := string(f[name].(json.Number))
	var n uint64
	if err := json.Unmarshal([]byte(strings.TrimPrefix(text, "-")), &n); err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(text, "-") {
		n = -n
	}
	return n
}

func digest(t *testing.T, f map[string]any, name string) (d block.Digest) {
	copy(d[:], unhex(t, f[name].(string)))
	return d
}

func frameOf(t *testing.T, f map[string]any) Frame {
	n := func(name string) uint64 { return number(t, f, name) }
	text := func(name string) []byte { return []byte(f[name].(string)) }
	return Frame{
		Version: uint16(n("version")), Op: Op(n("op")), Status: Status(n("status")), Digest: digest(t, f, "digest"),
		Layer:     uint32(n("layer")),
		Namespace: text("namespace"), Offset: n("offset"), Len: n("len"), CRC: uint32(n("crc")),
		DeadlineMS: uint32(n("deadline_ms")),
		Flags:      Flags(n("flags")), Request: n("request"), Total: n("total"), Body: n("body"),
		Parent:  digest(t, f, "parent"),
		Expires: int64(n("expires")), Key: text("key"), Attr: text("attr"),
	}
}

func TestGoldenFrames(t *testing.T) {
	for _, c := range goldens(t).Frames {
		want, bytes := frameOf(t, c.Frame), unhex(t, c.Hex)
		if got := hex.EncodeToString(want.Append(nil)); got != c.Hex {
			t.Errorf("%s is written as %s", c.Name, got)
		}
		var got Frame
		if n, err := got.Parse(append(bytes, 1, 2, 3)); err != nil || n != len(bytes) || !reflect.DeepEqual(got, want) {
			t.Errorf("%s reads as %+v, %d of %d bytes, %v", c.Name, got, n, len(bytes), err)
		}
		for i := range bytes {
			if _, err := got.Parse(bytes[:i]); !errors.Is(err, ErrShort) {
				t.Fatalf("%s cut at %d: %v", c.Name, i, err)
			}
		}
	}
}

// goldenAddr is an address in the golden file: digest and model are in hexadecimal.
type goldenAddr struct {
	Digest, Model string
	Layer         uint32
}

func (a goldenAddr) addr(t *testing.T) (out block.Addr) {
	copy(out.Digest[:], unhex(t, a.Digest))
	copy(out.Model[:], unhex(t, a.Model))
	out.Layer = a.Layer
	return out
}

func addrsOf(t *testing.T, golden []goldenAddr) (out []block.Addr) {
	for _, a := range golden {
		out = append(out, a.addr(t))
	}
	return out
}

func decode(t *testing.T, value []byte, v any) {
	if err := json.Unmarshal(value, v); err != nil {
		t.Fatal(err)
	}
}

func announcementOf(t *testing.T, value []byte) *Announcement {
	var v struct {
		Host           string
		Epoch, Version uint64
		Changes        []struct {
			Addr   goldenAddr
			Tiers  uint32
			Length uint64
		}
	}
	decode(t, value, &v)
	a := &Announcement{Host: v.Host, Epoch: v.Epoch, Version: v.Version}
	for _, c := range v.Changes {
		a.Changes = append(a.Changes, Change{c.Addr.addr(t), c.Tiers, c.Length})
	}
	return a
}

// body encodes a golden value with this package, and decodes the golden bytes.
func body(t *testing.T, kind string, value []byte, encoded []byte) (written []byte, back any, want any) {
	var err error
	switch kind {
	case "addrs":
		var v []goldenAddr
		decode(t, value, &v)
		addrs := addrsOf(t, v)
		written, want = AppendAddrs(nil, addrs), addrs
		back, err = ParseAddrs(encoded, nil)
	case "infos", "expiries":
		var v []Info
		decode(t, value, &v)
		out := make([]Info, len(v))
		long := kind == "expiries"
		written, want, back, err = AppendInfos(nil, v, long), v, out, ParseInfos(encoded, out, long)
	case "order":
		var v struct {
			Host   string
			Number uint64
			Moment int64
			Texts  []string
			Addrs  []goldenAddr
		}
		decode(t, value, &v)
		o := &Order{Host: v.Host, Number: v.Number, Moment: v.Moment, Texts: v.Texts, Addrs: addrsOf(t, v.Addrs)}
		written, want = o.Append(nil), o
		back, err = ParseOrder(encoded)
	case "reply":
		var v struct {
			Number uint64
			Marks  []byte
			Texts  []string
			Addrs  []goldenAddr
		}
		decode(t, value, &v)
		r := &Reply{Number: v.Number, Marks: v.Marks, Texts: v.Texts, Addrs: addrsOf(t, v.Addrs)}
		written, want = r.Append(nil), r
		back, err = ParseReply(encoded)
	case "locations":
		var v Locations
		decode(t, value, &v)
		v.Holders[1] = nil
		written, want = v.Append(nil), &v
		back, err = ParseLocations(encoded, len(v.Holders))
	case "announcement":
		a := announcementOf(t, value)
		written, want = a.Append(nil), a
		back, err = ParseAnnouncement(encoded)
	case "receipt":
		var v Receipt
		decode(t, value, &v)
		written, want = v.Append(nil), v
		back, err = ParseReceipt(encoded)
	case "connection", "connected", "wanted", "granted", "returned":
		written, want, back, err = grantBody(t, kind, value, encoded)
	default:
		t.Fatalf("no body is called %q", kind)
	}
	if err != nil {
		t.Error(kind, err)
	}
	return written, back, want
}

func TestGoldenBodies(t *testing.T) {
	for _, c := range goldens(t).Bodies {
		encoded := unhex(t, c.Hex)
		written, back, want := body(t, c.Kind, c.Value, encoded)
		if !bytes.Equal(written, encoded) {
			t.Errorf("%s is written as %x", c.Name, written)
		}
		if !reflect.DeepEqual(back, want) {
			t.Errorf("%s reads as %+v, want %+v", c.Name, back, want)
		}
	}
}

func TestCombine(t *testing.T) {
	for _, c := range goldens(t).Sums {
		want := binary.BigEndian.Uint32(unhex(t, c.Hex))
		got := block.Combine(block.Sum([]byte(c.First)), block.Sum([]byte(c.Second)), uint64(len(c.Second)))
		if whole := block.Sum([]byte(c.First + c.Second)); got != want || whole != want {
			t.Errorf("%s: combined %08x, whole %08x, want %08x", c.Name, got, whole, want)
		}
	}
}

// TestOtherImplementation lets a Python program recompute the golden bytes. The program shares no
// code with this package.
func TestOtherImplementation(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	if out, err := exec.Command(python, "testdata/check_frames.py").CombinedOutput(); err != nil {
		t.Fatalf("check_frames.py: %v\n%s", err, out)
	}
}
