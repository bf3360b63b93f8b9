package power

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"
	"sync"
	"testing"
)

// golden is a typical BMC's answer: 250 W now, least 47, most 351, mean 236, over 1 s, active.
var golden = []byte{0, 0xdc, 0xfa, 0, 0x2f, 0, 0x5f, 1, 0xec, 0, 0x9c, 0x31, 0x5e, 0x65, 0xe8, 3, 0, 0, 0x40}

// script is an IPMI device without ioctls. script answers each question with the next of answers,
// and repeats the last one. script stays silent if it has no answers.
type script struct {
	mu      sync.Mutex
	answers [][]byte
	before  []message // delivered before the answers, as late answers to older questions are
	asked   []string
	id      int64
	closed  bool
	fail    error
}

func (s *script) send(id int64, netfn, cmd byte, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, hex.EncodeToString(append([]byte{netfn, cmd}, data...)))
	s.id = id
	return s.fail
}

func (s *script) receive(ctx context.Context) (message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.before) > 0 {
		m := s.before[0]
		s.before = s.before[1:]
		return m, nil
	}
	if len(s.answers) == 0 {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return message{}, ctx.Err()
	}
	a := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	return message{id: s.id, netfn: netfnGroup | netfnResponse, cmd: cmdPower, data: a}, nil
}

func (s *script) Close() error { s.closed = true; return nil }

func (s *script) silent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = nil
}

func with(at int, b byte) []byte {
	c := append([]byte(nil), golden...)
	c[at] = b
	return c
}

func TestDCMI(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer []byte
		watts  float64
		err    string
	}{
		{"golden", golden, 250, ""},
		{"longer than the standard", append(append([]byte(nil), golden...), 1, 2, 3), 250, ""},
		{"high byte", with(3, 0x10), 250 + 0x1000, ""},
		{"not active", with(18, 0), 0, "does not measure power now"},
		{"zero", append([]byte{0, 0xdc, 0, 0}, golden[4:]...), 0, "0 W"},
		{"another group", with(1, 0xdd), 0, "group 0xdd"},
		{"busy", []byte{0xc0}, 0, "busy"},
		{"no such command", []byte{0xc1}, 0, "no DCMI power readings"},
		{"no rights", []byte{0xd4, 0xdc}, 0, "does not permit"},
		{"refused", []byte{0xff}, 0, "completion code 0xff"},
		{"short", golden[:18], 0, "18 bytes, not 19"},
		{"nothing", nil, 0, "empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &script{answers: [][]byte{c.answer}}
			d := &dcmi{port: s, limit: ipmiTimeout}
			watts, err := d.read(t.Context())
			if watts != c.watts || (err == nil) != (c.err == "") ||
				err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, %v", watts, err)
			}
			if s.asked[0] != "2c02dc010000" {
				t.Errorf("asked %s", s.asked)
			}
		})
	}
}

func TestDCMIAnswersOutOfTurn(t *testing.T) {
	late := message{id: 0, netfn: 0x2d, cmd: cmdPower, data: with(2, 1)}
	s := &script{answers: [][]byte{golden}, before: []message{late, late}}
	d := &dcmi{port: s, limit: ipmiTimeout}
	if watts, err := d.read(t.Context()); watts != 250 || err != nil {
		t.Errorf("a late answer: %v, %v", watts, err)
	}
	for range maxAnswers {
		s.before = append(s.before, late)
	}
	if _, err := d.read(t.Context()); err == nil {
		t.Error("answers to others without end")
	}
	s.before = []message{{id: d.id + 1, netfn: 0x07, cmd: 1, data: golden}}
	if _, err := d.read(t.Context()); err == nil || !strings.Contains(err.Error(), "function 0x7") {
		t.Errorf("another command: %v", err)
	}
	s.fail = errors.New("gone")
	if _, err := d.read(t.Context()); !errors.Is(err, s.fail) {
		t.Errorf("%v", err)
	}
}

// FuzzDCMI: only an active reading of 1 to 65535 W gives watts.
func FuzzDCMI(f *testing.F) {
	f.Add(golden)
	f.Add(golden[:18])
	f.Add([]byte{0xc1})
	f.Fuzz(func(t *testing.T, data []byte) {
		watts, err := parsePower(data)
		ok := len(data) >= dcmiLength && data[0] == 0 && data[1] == groupDCMI && data[18]&dcmiActive != 0 &&
			(data[2] != 0 || data[3] != 0)
		if (err == nil) != ok || ok && (watts < 1 || watts > 65535) || !ok && watts != 0 {
			t.Errorf("%x: %v, %v", data, watts, err)
		}
	})
}
