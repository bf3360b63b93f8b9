package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"
)

// recorded reads a message captured from vLLM 0.32: the number of frames, then the length and the
// bytes of each.
func recorded(t *testing.T, name string) [][]byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".bin"))
	if err != nil {
		t.Fatal(err)
	}
	frames := make([][]byte, binary.BigEndian.Uint32(b))
	b = b[4:]
	for i := range frames {
		n := binary.BigEndian.Uint32(b)
		frames[i], b = b[4:4+n], b[4+n:]
	}
	return frames
}

func unpack(t *testing.T, payload []byte) []any {
	t.Helper()
	var v []any
	d := msgpack.NewDecoder(bytes.NewReader(payload))
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// fieldsOf returns an event's structure: its keys in alphabetical order, with the kind of each
// value.
func fieldsOf(event any) []string {
	var list []string
	for k, v := range event.(map[string]any) {
		list = append(list, fmt.Sprintf("%s %s", k, kindOf(v)))
	}
	slices.Sort(list)
	return list
}

func kindOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "nil"
	case []byte:
		return "bytes"
	case string:
		return v
	case []any:
		if len(v) == 0 {
			return "[]"
		}
		return "[" + kindOf(v[0]) + "]"
	}
	if k := reflect.TypeOf(v).Kind(); k >= reflect.Int && k <= reflect.Uint64 {
		return "int"
	}
	return fmt.Sprintf("%T", v)
}

// TestMapFormIsWhatVLLMSends compares simulated events with recorded events of vLLM that have the
// same causes. A simulated event must have the fields of the recorded one, with values of the same
// kinds.
func TestMapFormIsWhatVLLMSends(t *testing.T) {
	prompt := appendTokens(nil, strings.Repeat("word", 96))
	q := newSequence(prompt, output{limit: 1}, 32, "tenant-a", nil)
	plain := newSequence(prompt, output{limit: 1}, 32, "", nil)
	adapted := newSequence(prompt, output{limit: 1}, 32, "", nil)
	adapted.adapt("sql", 1, 32)
	for _, tc := range []struct {
		name   string
		hashes HashForm
		add    func(l *eventLog)
	}{
		{"int-blockstored-child", HashInt, func(l *eventLog) { l.stored(plain, 1, 2, 32) }},
		{"int-blockstored-cachesalt", HashInt, func(l *eventLog) { l.stored(q, 0, 1, 32) }},
		{"int-blockstored-lora-sql", HashInt, func(l *eventLog) { l.stored(adapted, 0, 3, 32) }},
		{"bytes-allcleared-then-stored", HashBytes, func(l *eventLog) { l.cleared(); l.stored(q, 0, 1, 32) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var sent batch
			l := &eventLog{form: KVEvents{Events: EventMap, Hashes: tc.hashes, BufferSteps: 1},
				send: func(b batch) { sent = b }}
			tc.add(l)
			l.publish()
			ours, theirs := unpack(t, sent.payload), unpack(t, recorded(t, tc.name)[2])
			if len(ours) != len(theirs) || kindOf(ours[0]) != kindOf(theirs[0]) ||
				kindOf(ours[2]) != kindOf(theirs[2]) {
				t.Fatalf("batch %v, want the form of %v", ours, theirs)
			}
			got, want := ours[1].([]any), theirs[1].([]any)
			if len(got) != len(want) {
				t.Fatalf("%d events, want %d", len(got), len(want))
			}
			for i := range got {
				if g, w := fieldsOf(got[i]), fieldsOf(want[i]); !reflect.DeepEqual(g, w) {
					t.Errorf("event %d\n got %v\nwant %v", i, g, w)
				}
			}
		})
	}
}

func TestArrayForm(t *testing.T) {
	prompt := appendTokens(nil, strings.Repeat("word", 32))
	q := newSequence(prompt, output{limit: 1}, 16, "", nil)
	var sent batch
	l := &eventLog{form: KVEvents{Events: EventArray, Hashes: HashBytes, BufferSteps: 1},
		send: func(b batch) { sent = b }}
	l.stored(q, 1, 2, 16)
	l.removed(q.hashes[0])
	l.cleared()
	l.publish()
	list := unpack(t, sent.payload)[1].([]any)
	stored := list[0].([]any)
	if stored[0] != "BlockStored" || !bytes.Equal(stored[1].([]any)[0].([]byte), q.hashes[1][:]) ||
		!bytes.Equal(stored[2].([]byte), q.hashes[0][:]) || len(stored[3].([]any)) != 16 ||
		fmt.Sprint(stored[4]) != "16" ||
		stored[6] != "GPU" || stored[10] != "full_attention" {
		t.Errorf("stored %v", stored)
	}
	if removed := list[1].([]any); removed[0] != "BlockRemoved" || removed[2] != "GPU" ||
		fmt.Sprint(removed[3]) != "0" {
		t.Errorf("removed %v", removed)
	}
	if cleared := list[2].([]any); len(cleared) != 1 || cleared[0] != "AllBlocksCleared" {
		t.Errorf("cleared %v", cleared)
	}
}

func kvEngine(t *testing.T, change ...func(*Config)) *Engine {
	return start(t, append([]func(*Config){func(c *Config) {
		c.KVEvents = &KVEvents{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0", Topic: "kv"}
	}}, change...)...)
}

// subscribe connects a SUB socket and waits until the engine has its subscription.
func subscribe(t *testing.T, e *Engine) zmq4.Socket {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	t.Cleanup(cancel)
	s := zmq4.NewSub(ctx)
	t.Cleanup(func() { _ = s.Close() })
	endpoint, _ := e.KVEndpoints()
	if err := s.Dial(endpoint); err != nil {
		t.Fatal(err)
	}
	if err := s.SetOption(zmq4.OptionSubscribe, "kv"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a subscriber", func() bool { return e.core().ranks[0].events.subscribers() == 1 })
	return s
}

// next receives a batch and returns its sequence number and the types of its events.
func next(t *testing.T, s zmq4.Socket) (seq uint64, kinds []string, list []any) {
	t.Helper()
	msg, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if len(msg.Frames) != 3 || string(msg.Frames[0]) != "kv" {
		t.Fatalf("frames %q", msg.Frames)
	}
	list = unpack(t, msg.Frames[2])[1].([]any)
	for _, e := range list {
		kinds = append(kinds, e.(map[string]any)["type"].(string))
	}
	return binary.BigEndian.Uint64(msg.Frames[1]), kinds, list
}

func TestEventsReachSubscriberAndReplay(t *testing.T) {
	e := kvEngine(t)
	sub := subscribe(t, e)
	object(t, post(t, e, "/v1/completions", `{"prompt":"`+strings.Repeat("abcd", 40)+`","max_tokens":30}`), 200)
	seq, kinds, list := next(t, sub)
	if seq != 0 || len(kinds) != 1 || kinds[0] != "BlockStored" {
		t.Fatalf("batch %d %v", seq, kinds)
	}
	first := list[0].(map[string]any)
	if n := len(first["block_hashes"].([]any)); n != 2 || len(first["token_ids"].([]any)) != 32 {
		t.Errorf("%d blocks stored for the prompt: %v", n, first)
	}
	// 40 prompt and 29 computed answer tokens fill two more blocks while decoding.
	for want := uint64(1); want <= 2; want++ {
		seq, _, list := next(t, sub)
		parent := list[0].(map[string]any)["parent_block_hash"]
		if seq != want || parent == nil {
			t.Errorf("batch %d with parent %v", seq, parent)
		}
	}
	checkReplay(t, e, 1, []uint64{1, 2})
}

func checkReplay(t *testing.T, e *Engine, from uint64, want []uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	d := zmq4.NewDealer(ctx)
	defer d.Close()
	_, endpoint := e.KVEndpoints()
	if err := d.Dial(endpoint); err != nil {
		t.Fatal(err)
	}
	if err := d.SendMulti(zmq4.NewMsgFrom(nil, sequenceFrame(from))); err != nil {
		t.Fatal(err)
	}
	end := recorded(t, "dealer-replay-004")
	for _, seq := range append(slices.Clone(want), endOfReplay) {
		msg, err := d.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(msg.Frames) != len(end) || binary.BigEndian.Uint64(msg.Frames[2]) != seq {
			t.Fatalf("replay %q, want sequence number %d", msg.Frames, seq)
		}
		if seq == endOfReplay && !reflect.DeepEqual(sizes(msg.Frames), sizes(end)) {
			t.Errorf("replay ends with %q", msg.Frames)
		}
	}
}

func sizes(frames [][]byte) (n []int) {
	for _, f := range frames {
		n = append(n, len(f))
	}
	return n
}

func TestRemovalAndReset(t *testing.T) {
	e := kvEngine(t, func(c *Config) { c.CacheBlocks = 8 })
	sub := subscribe(t, e)
	ask := func(letter string) {
		object(t, post(t, e, "/v1/completions", `{"prompt":"`+strings.Repeat(letter, 4*64)+`","max_tokens":1}`), 200)
	}
	ask("a")
	next(t, sub)
	ask("b")
	next(t, sub)
	ask("c") // 4 blocks, so the tail of "a" must go
	if _, kinds, list := next(t, sub); kinds[0] != "BlockRemoved" || kinds[len(kinds)-1] != "BlockStored" {
		t.Errorf("batch %v %v", kinds, list)
	}
	res := post(t, e, "/reset_prefix_cache", "")
	if res.StatusCode != http.StatusOK {
		t.Fatal(res.Status)
	}
	ask("d")
	if _, kinds, _ := next(t, sub); kinds[0] != "AllBlocksCleared" {
		t.Errorf("batch after reset: %v", kinds)
	}
}

func TestRestartKeepsEndpointsAndStartsCountingAgain(t *testing.T) {
	e := kvEngine(t)
	before, _ := e.KVEndpoints()
	object(t, post(t, e, "/v1/completions", `{"prompt":"`+strings.Repeat("abcd", 40)+`","max_tokens":1}`), 200)
	e.Kill()
	if err := e.Accept(); err != nil {
		t.Fatal(err)
	}
	if after, _ := e.KVEndpoints(); after != before {
		t.Errorf("endpoint %s became %s", before, after)
	}
	if s := e.Stats(); s.CachedBlocks != 0 || s.PromptTokens != 0 {
		t.Errorf("stats survived: %+v", s)
	}
	sub := subscribe(t, e)
	object(t, post(t, e, "/v1/completions", `{"prompt":"`+strings.Repeat("abcd", 40)+`","max_tokens":1}`), 200)
	if seq, _, _ := next(t, sub); seq != 0 {
		t.Errorf("first batch after a restart is %d", seq)
	}
}

func TestReplayIsBounded(t *testing.T) {
	l := &eventLog{form: KVEvents{Events: EventMap, Hashes: HashInt, BufferSteps: 20}, send: func(batch) {}}
	for range 100 {
		l.cleared()
		l.publish()
	}
	kept := l.since(0)
	if n := len(kept); n < 18 || n > 20 || kept[n-1].seq != 99 {
		t.Errorf("%d batches kept, the last is %d", n, kept[n-1].seq)
	}
	if len(l.since(95)) != 5 || len(l.since(endOfReplay)) != 0 {
		t.Errorf("%d since 95, %d since the end", len(l.since(95)), len(l.since(endOfReplay)))
	}
}

// subscribers is the number of connected subscribers of the topic.
func (p *publisher) subscribers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, s := range p.conns {
		if s != nil && s.wants(p.form.Topic) {
			n++
		}
	}
	return n
}
