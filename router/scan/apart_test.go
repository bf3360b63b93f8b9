package scan

import (
	"strings"
	"testing"
)

// TestSalt checks that a body has exactly the one salt that Salt sets, with and without an index.
func TestSalt(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","messages":[]}`:                         `{"cache_salt":"s","model":"m","messages":[]}`,
		`{"model":"m","cache_salt":"a" ,"messages":[]}`:       `{"model":"m","cache_salt":"s" ,"messages":[]}`,
		`{"model":"m","messages":[],"cache_\u0073alt":"\n"}`:  `{"model":"m","messages":[],"cache_\u0073alt":"s"}`,
		`{"model":"m","messages":[{"cache_salt":1}]}`:         `{"cache_salt":"s","model":"m","messages":[{"cache_salt":1}]}`,
		`{"cache_salt":null, "model":"m","messages":[]}`:      `{"cache_salt":"s", "model":"m","messages":[]}`,
		`{"model":"m","messages":[],"x":1,"cache_salt":null}`: `{"model":"m","messages":[],"x":1,"cache_salt":"s"}`,
	} {
		if got := edited(t, Chat, body, func(e *Edits) { e.Salt([]byte("s")) }); got != want {
			t.Errorf("%s\n got %s\nwant %s", body, got, want)
		}
		all := func(e *Edits) { e.Model("m"); e.Salt([]byte("s")); e.Remove("nothing") }
		if got := edited(t, Chat, body, all); got != want {
			t.Errorf("with an index: %s\n got %s\nwant %s", body, got, want)
		}
		later := func(e *Edits) { e.Salt([]byte("other")); e.Set("cache_salt", []byte(`"s"`)) }
		if got := edited(t, Chat, body, later); got != want {
			t.Errorf("set again: %s\n got %s\nwant %s", body, got, want)
		}
	}
	var r Request
	twice := `{"model":"m","messages":[],"cache_salt":"a","cache_sal\u0074":"b"}`
	if Scan(Chat, []byte(twice), &r) == nil {
		t.Error("two salts were taken")
	}
}

func TestSaltDoesNotAllocate(t *testing.T) {
	body, salt := []byte(`{"model":"m","messages":[],"stream":true}`), []byte("0123456789abcdef")
	r := mustScan(t, Chat, string(body))
	var e Edits
	var out [][]byte
	if n := testing.AllocsPerRun(100, func() {
		e.Reset(r, body)
		e.Model("m")
		e.Salt(salt)
		e.IncludeUsage()
		out = e.Segments(out[:0])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestTransfers(t *testing.T) {
	for _, name := range TransferMembers {
		for _, api := range []API{Chat, Responses, Other} {
			if r := mustScan(t, api, `{"model":"m","messages":[],"input":"","`+name+`":{"a":1}}`); !r.Transfers() {
				t.Errorf("%s of %v hands over nothing", name, api)
			}
		}
	}
	if mustScan(t, Chat, `{"model":"m","messages":[],"transfer":1,"metadata":{"bootstrap_room":1}}`).Transfers() {
		t.Error("other members hand over blocks")
	}
}

// TestSpaces checks that a body is remembered for the clients of its space only.
func TestSpaces(t *testing.T) {
	m := NewMemo(1 << 20)
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", 20<<10) + `"}]}`)
	passed := func(space uint64) int {
		var r Request
		r.Space = space
		if err := m.Scan(Chat, body, &r); err != nil {
			t.Fatal(err)
		}
		m.Keep(&r)
		return r.Skipped
	}
	for _, space := range []uint64{0, 7, 8} {
		if n := passed(space); n != 0 {
			t.Errorf("space %d: %d bytes are known before the first scan", space, n)
		}
		if n := passed(space); n < len(body)/2 {
			t.Errorf("space %d: %d bytes are known after the first scan", space, n)
		}
	}
}
