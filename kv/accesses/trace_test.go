package accesses

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestReadSaysWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"{}":                                    "trace line 1: hash_ids is missing or empty",
		"{\"hash_ids\":[1]}\n{\"hash_ids\":[]}": "trace line 2: hash_ids",
		`{"hash_ids":[1],"op":"del"}`:           "op is \"del\"",
		`{"hash_ids":[1],"bytes":-1}`:           "bytes is negative",
		`{"hash_ids":["a"]}`:                    "trace line 1: hash_ids is string; it must be a list of whole numbers",
		`{"hash_ids":"x"}`:                      "trace line 1: hash_ids is string; it must be a list of whole numbers",
		`{"hash_ids":[1],"bytes":1.5}`:          "trace line 1: bytes is number 1.5; it must be a whole number",
		"[1]":                                   "trace line 1: not a JSON object, but array",
		"\n\nx\n":                               "trace line 3: not a JSON object",
		"{\"hash_ids\":[1]}\n{\"ha\n":           "trace line 2: not a JSON object",
		`{"hash_ids":[` + strings.Repeat("1,", maxLine/2): "longer than",
	} {
		_, err := Read(strings.NewReader(text))
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

func TestReadLeavesATornEndOut(t *testing.T) {
	tr, err := Read(strings.NewReader("{\"hash_ids\":[1]}\r\n\n{\"hash_ids\":[2,3]}\n{\"timestamp\":7,\"hash"))
	var torn *TornError
	if !errors.As(err, &torn) || torn.Line != 4 || tr.Requests() != 2 || tr.Distinct() != 3 {
		t.Errorf("%v, %+v", err, tr)
	}
	if tr, err := Read(strings.NewReader("{\"hash_ids\":[1]}\n{\"hash_ids\":[2]}")); err != nil || tr.Requests() != 2 {
		t.Errorf("a last line without an end: %v", err)
	}
}

func TestRecorderIsReadBackAndBounded(t *testing.T) {
	var b bytes.Buffer
	r := NewRecorder(&b, 120)
	r.Put([]int64{4, 5}, 2048)
	r.Get([]int64{4, 5, 6}, 0)
	for range 10 {
		r.Get([]int64{7}, 0)
	}
	if err := r.Flush(); err != nil {
		t.Fatal(err)
	}
	tr, err := Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	s := r.Stats()
	if tr.Requests() != int(s.Lines) || s.Lines < 2 || s.Lines+s.Dropped != 12 || s.Dropped == 0 ||
		tr.BlockBytes() != 1024 {
		t.Errorf("%+v, %d requests", s, tr.Requests())
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space") }

func TestRecorderEndsWhereItCannotWrite(t *testing.T) {
	r := NewRecorder(full{}, 1<<30)
	for range 10_000 {
		r.Get([]int64{1, 2, 3}, 0)
	}
	if err := r.Flush(); err == nil || r.Stats().Dropped == 0 {
		t.Errorf("%v, %+v", err, r.Stats())
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"timestamp":1,"hash_ids":[1,2],"op":"put","bytes":5}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tr, err := Read(bytes.NewReader(b))
		if torn := (*TornError)(nil); (err == nil || errors.As(err, &torn)) && tr.Distinct() > len(tr.keys) {
			t.Fatal("more names than accesses")
		}
	})
}
