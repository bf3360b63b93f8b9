package trace

import (
	"bytes"
	"errors"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
)

func all(t *testing.T, s Source) (list []Request) {
	t.Helper()
	for q, err := range All(s) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, q)
	}
	return list
}

func TestReader(t *testing.T) {
	f, err := os.Open("testdata/mooncake.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := all(t, NewReader(f))
	if len(got) != 4 {
		t.Fatalf("%d requests, want 4", len(got))
	}
	want := Request{Timestamp: 1025, InputLength: 1536, OutputLength: 100, HashIDs: []int64{0, 1, 4}}
	if !reflect.DeepEqual(got[2], want) {
		t.Errorf("got %+v, want %+v", got[2], want)
	}
}

func TestBadLines(t *testing.T) {
	good := `{"timestamp":5,"input_length":512,"output_length":1,"hash_ids":[1]}` + "\n"
	for name, c := range map[string]struct{ line, want string }{
		"not JSON":        {`{"timestamp":`, "trace line 2: unexpected end"},
		"wrong type":      {`{"timestamp":"x"}`, "trace line 2: timestamp: is a string"},
		"fraction":        {`{"timestamp":1,"input_length":1.5}`, "trace line 2: input_length: is a number 1.5"},
		"negative time":   {`{"timestamp":-1,"input_length":1,"hash_ids":[1]}`, "trace line 2: timestamp: is negative"},
		"back in time":    {`{"timestamp":4,"input_length":1,"hash_ids":[1]}`, "trace line 2: timestamp: 4 comes after 5"},
		"no input":        {`{"timestamp":5,"hash_ids":[1]}`, "trace line 2: input_length: is missing"},
		"negative output": {`{"timestamp":5,"input_length":1,"output_length":-1,"hash_ids":[1]}`, "trace line 2: output_length: is negative"},
		"too few ids":     {`{"timestamp":5,"input_length":513,"hash_ids":[1]}`, "trace line 2: hash_ids: has 1 ids, 513 tokens need 2"},
		"negative id":     {`{"timestamp":5,"input_length":1,"hash_ids":[-1]}`, "trace line 2: hash_ids: has a negative id -1"},
		"system":          {`{"timestamp":5,"input_length":1,"hash_ids":[1],"system_blocks":2}`, "trace line 2: system_blocks: is 2 of 1"},
		"endless line":    {strings.Repeat(" ", maxLine+1), "trace line 2: longer than 4194304 bytes"},
	} {
		r := NewReader(strings.NewReader(good + c.line + "\n"))
		if _, err := r.Next(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, err := r.Next()
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
}

func TestAReadErrorIsNotAnEnd(t *testing.T) {
	broken := io.MultiReader(strings.NewReader("\n\n"), errReader{})
	if _, err := NewReader(broken).Next(); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestWriteReadsBack(t *testing.T) {
	g := Generator{Requests: 50, Seed: 3}
	var b bytes.Buffer
	if err := Write(&b, g.Source()); err != nil {
		t.Fatal(err)
	}
	if got, want := all(t, NewReader(&b)), all(t, g.Source()); !reflect.DeepEqual(got, want) {
		t.Error("a written trace reads back differently")
	}
}

func TestLimit(t *testing.T) {
	if got := all(t, Limit(Generator{Requests: 10}.Source(), 3)); len(got) != 3 {
		t.Errorf("%d requests, want 3", len(got))
	}
	if got := all(t, Limit(Generator{Requests: 2}.Source(), 3)); len(got) != 2 {
		t.Errorf("%d requests, want 2", len(got))
	}
}

func TestTextFollowsTheIDs(t *testing.T) {
	a := Request{InputLength: 1200, HashIDs: []int64{0, 1, 2}}
	b := Request{InputLength: 1536, HashIDs: []int64{0, 1, 4}}
	c := Request{InputLength: 1024, HashIDs: []int64{0, 7}}
	pa, system := Text{}.Prompt(nil, &a)
	pb, _ := Text{}.Prompt(nil, &b)
	pc, _ := Text{}.Prompt([]byte("before"), &c)
	if len(pa) != 4800 || len(pb) != 6144 || len(pc) != 6+4096 || system != 2048 {
		t.Fatalf("lengths %d %d %d, system %d", len(pa), len(pb), len(pc), system)
	}
	if n := common(pa, pb); n < 4096 || n > 4100 {
		t.Errorf("two shared ids share %d bytes", n)
	}
	if n := common(pa, pc[6:]); n < 2048 || n > 2052 {
		t.Errorf("one shared id shares %d bytes", n)
	}
	if i := bytes.IndexFunc(pa, func(r rune) bool { return r != ' ' && (r < 'a' || r > 'z') }); i >= 0 {
		t.Errorf("byte %d is %q", i, pa[i])
	}
}

func TestSpread(t *testing.T) {
	a := Request{InputLength: 1536, HashIDs: []int64{0, 1, 2}}
	b := Request{InputLength: 1536, HashIDs: []int64{0, 1, 3}}
	c := Request{InputLength: 1536, HashIDs: []int64{0, 9, 2}}
	s := Text{Spread: true}
	pa, _ := s.Prompt(nil, &a)
	pb, _ := s.Prompt(nil, &b)
	pc, _ := s.Prompt(nil, &c)
	if n := common(pa, pb); n < 4096 {
		t.Errorf("the same first two ids share %d bytes", n)
	}
	if n := common(pa, pc); n > 4 {
		t.Errorf("another second id shares %d bytes", n)
	}
}

func common(a, b []byte) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// Runs are comparable only if the text of an id never changes.
// TestSaltsMakeOtherTexts checks that equal ids give equal texts only with the same salt.
func TestSaltsMakeOtherTexts(t *testing.T) {
	a := Request{InputLength: 1200, HashIDs: []int64{0, 1, 2}}
	plain, _ := Text{}.Prompt(nil, &a)
	salted, system := Text{Salt: 1}.Prompt(nil, &a)
	again, _ := Text{Salt: 1}.Prompt(nil, &a)
	other, _ := Text{Salt: 2}.Prompt(nil, &a)
	if !bytes.Equal(salted, again) || system != 2048 || len(salted) != len(plain) {
		t.Errorf("%d bytes, system %d", len(salted), system)
	}
	if n := max(common(plain, salted), common(salted, other), common(plain, other)); n > 8 {
		t.Errorf("two salts share %d bytes", n)
	}
}

func TestTextIsFrozen(t *testing.T) {
	p, _ := Text{}.Prompt(nil, &Request{InputLength: 10, HashIDs: []int64{42}})
	if got, want := string(p), frozen; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

const frozen = "syvfyruy nynqzcd mdnnoa iprjok gucvxc ou"

func TestGenerator(t *testing.T) {
	g := Generator{Requests: 4000, Seed: 1}
	list := all(t, g.Source())
	if !reflect.DeepEqual(list, all(t, g.Source())) {
		t.Error("the same seed makes another trace")
	}
	seen, blocks, hits := map[int64]bool{}, 0, 0
	last, previous := int64(0), int64(0)
	for i, q := range list {
		if field, reason := q.check(previous); field != "" {
			t.Fatalf("request %d: %s %s", i, field, reason)
		}
		previous, last = q.Timestamp, q.Timestamp
		for _, id := range q.HashIDs {
			if blocks++; seen[id] {
				hits++
			}
			seen[id] = true
		}
	}
	if rate := 4000 / (float64(last) / 1000); rate < 2.5 || rate > 4.5 {
		t.Errorf("%.2f requests per second, want about 3.4", rate)
	}
	if reuse := float64(hits) / float64(blocks); reuse < 0.4 || reuse > 0.9 {
		t.Errorf("%.0f %% of the blocks were seen before", 100*reuse)
	}
}
