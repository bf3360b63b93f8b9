package request

import (
	"errors"
	"iter"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/scan"
)

// read reads a chat with the given further members.
func read(r *Request, members string) error {
	r.API = scan.Chat
	r.Own([]byte(`{"model":"m","messages":[]`+members+`}`), nil)
	return r.Read(nil, nil)
}

// TestSaltOfNvext checks that the salt of nvext is the request's. A second, different salt is an
// error, because it would leave open who shares a cache.
func TestSaltOfNvext(t *testing.T) {
	for members, want := range map[string]string{
		`,"nvext":{"cache_salt":"a"}`:                       "a",
		`,"nvext":{"cache_salt":"a"},"cache_salt":"a"`:      "a",
		`,"nvext":{"cache_salt":"\u0061"},"cache_salt":"a"`: "a",
		`,"nvext":{"cache_salt":"a"},"cache_salt":null`:     "a",
		`,"nvext":{"cache_salt":null},"cache_salt":"b"`:     "b",
		`,"nvext":null,"cache_salt":"b"`:                    "b",
		`,"nvext":{}`:                                       "",
	} {
		r := New()
		if err := read(r, members); err != nil || string(r.Scan.CacheSalt) != want {
			t.Errorf("%s: %v, salt %q", members, err, r.Scan.CacheSalt)
		}
		if r.Release(); r.Scan.CacheSalt != nil {
			t.Errorf("%s: the salt outlives the body", members)
		}
	}
	for _, salt := range []string{"b", ""} {
		err := read(New(), `,"cache_salt":"`+salt+`","nvext":{"cache_salt":"a"}`)
		var e *scan.Error
		if !errors.As(err, &e) || e.Param != "nvext.cache_salt" || !strings.Contains(e.Message, "differs") {
			t.Errorf("a and %q: %v", salt, err)
		}
	}
}

func TestWhichWorkerIsMeant(t *testing.T) {
	pin := `,"nvext":{"backend_instance_id":5}`
	for _, c := range []struct{ pin, body, header, id, by, privileged string }{
		{},
		{"", `,"nvext":{"agent_hints":{"osl":3}}`, "", "", "", ""},
		{"n", pin, "7", "n", "x-cgn-node", "x-cgn-node"},
		{"", pin, "7", "7", "x-dynamo-worker-instance-id", "nvext.backend_instance_id"},
		{"", pin, "", "5", "nvext.backend_instance_id", "nvext.backend_instance_id"},
		{"", "", "7", "7", "x-dynamo-worker-instance-id", "x-dynamo-worker-instance-id"},
	} {
		r := New()
		r.Pin = c.pin
		if err := read(r, c.body); err != nil {
			t.Fatal(err)
		}
		if c.header != "" {
			if err := r.ReadHeaders(one("X-Dynamo-Worker-Instance-Id", c.header)); err != nil {
				t.Fatal(err)
			}
		}
		id, by := r.Worker()
		if id != c.id || by != c.by || r.Privileged() != c.privileged {
			t.Errorf("%+v: %q by %q, privileged %q", c, id, by, r.Privileged())
		}
	}
}

func one(name, value string) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) { yield([]byte(name), []byte(value)) }
}

// TestNvextEndsWithTheRequest checks that the next request on the same memory has no nvext of the
// last one.
func TestNvextEndsWithTheRequest(t *testing.T) {
	r := New()
	if err := read(r, `,"nvext":{"allowed_worker_ids":["a"],"router":{"router_temperature":1}}`); err != nil {
		t.Fatal(err)
	}
	body := r.Body()
	r.Release()
	clear(body)
	if w := r.Allowed(); len(w) != 1 || w[0] != "a" {
		t.Errorf("after the body: %v", w)
	}
	r.Reset()
	if err := read(r, ""); err != nil || r.Nvext != nil || r.Allowed() != nil || r.Privileged() != "" {
		t.Errorf("%v, nvext of another request: %+v", err, r.Nvext)
	}
}

// TestNvextIsChecked checks that Read reports an error of nvext.
func TestNvextIsChecked(t *testing.T) {
	err := read(New(), `,"nvext":{"dp_rnk":1}`)
	var e *scan.Error
	if !errors.As(err, &e) || e.Code != scan.CodeUnknown || e.Param != "nvext.dp_rnk" {
		t.Errorf("%v", err)
	}
}

// TestBodiesWithoutNvextAllocateNothing checks the path of an ordinary request.
func TestBodiesWithoutNvextAllocateNothing(t *testing.T) {
	r, body := New(), []byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}`)
	r.API = scan.Chat
	n := testing.AllocsPerRun(100, func() {
		r.Reset()
		r.Own(body, nil)
		if err := r.Read(nil, nil); err != nil {
			t.Fatal(err)
		}
		if id, _ := r.Worker(); id != "" || r.Privileged() != "" || r.Allowed() != nil {
			t.Fatal("something is asked for")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
