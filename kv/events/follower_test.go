package events

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cognitora/dataplane/kv/residency"
)

// until returns a context that ends when done is closed.
func until(done <-chan struct{}) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-done
		cancel()
	}()
	return ctx
}

// turn returns a batch that appends block i of a prompt to its chain.
func turn(t testing.TB, tokens []uint32, i int) []byte {
	var parent any
	if i > 0 {
		parent = tokens[16*i-16]
	}
	return batchFrom(t, 0, stores([]any{tokens[16*i]}, parent, tokens[16*i:16*i+16], 16, nil))
}

const blocks = 40

var prompt = count(1, 16*blocks)

// TestReplayedGaps checks that the replay brings batches that were lost on the way. In the end all
// batches are there.
func TestReplayedGaps(t *testing.T) {
	for _, bare := range []bool{false, true} {
		p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
		p.bare = bare
		for i := range 5 {
			p.keep(turn(t, prompt, i)) // before the follower subscribes
		}
		f := follow(t, p.endpoints())
		f.awaits("what was before", prompt, 5)
		for i := 5; i < blocks; i++ {
			if i%7 < 4 && i < blocks-1 {
				p.keep(turn(t, prompt, i))
			} else {
				p.say(turn(t, prompt, i))
			}
		}
		f.awaits("everything", prompt, blocks)
		if s := f.Stats(); s.Gaps == 0 || s.Lost != 0 || s.Epochs != 0 || !s.Complete || s.Batches != blocks ||
			s.Orphans != 0 {
			t.Errorf("%+v", s)
		}
		f.stop()
		if f.sink.gone != 1 || f.sink.Index.Stats().Engines != 0 {
			t.Error("the engine is reported after the end")
		}
	}
}

// TestAdaptersInUse checks that the follower tells of adapters as the engine stores their blocks.
// It does not tell of blocks that a replay brings, which may be old.
func TestAdaptersInUse(t *testing.T) {
	stored := func(i int, adapter string) []byte {
		more := fields{}
		if adapter != "" {
			more["lora_name"] = adapter
		}
		return batchFrom(t, 0, stores([]any{1000 + i}, nil, prompt[16*i:16*i+16], 16, more))
	}
	p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
	p.keep(stored(0, "before"))
	o, seen := p.endpoints(), make(chan string, 10)
	o.Adapter = func(name []byte) { seen <- string(name) }
	f := follow(t, o)
	eventually(t, "the replay is read", func() bool { return f.Stats().Following && f.Stats().Batches == 1 })
	for i, adapter := range []string{"sql", "", "chat", "sql"} {
		p.say(stored(i+1, adapter))
	}
	for _, want := range []string{"sql", "chat", "sql"} {
		if got := <-seen; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestLostGap checks that the knowledge is forgotten if the replay lacks the missing batches.
func TestLostGap(t *testing.T) {
	for _, router := range []string{"127.0.0.1:0", ""} {
		p := publish(t, "127.0.0.1:0", router)
		f := follow(t, p.endpoints())
		eventually(t, "it listens", func() bool { return p.subscribers() == 1 && f.Stats().Following })
		p.say(turn(t, prompt, 0))
		f.awaits("the first", prompt, 1)
		p.keep(turn(t, prompt, 1))
		p.forget(2)
		p.say(turn(t, prompt[160:], 0))
		f.awaits("what came after", prompt[160:], 1)
		f.awaits("what was before", prompt[:16], 0)
		if s := f.Stats(); s.Gaps != 1 || s.Epochs != 1 || s.Complete || !s.Following {
			t.Errorf("%+v", s)
		}
		p.say(batchFrom(t, 0, fields{"type": "AllBlocksCleared"}))
		f.awaits("cleared", prompt[160:], 0)
		eventually(t, "all is known of an empty engine", func() bool { return f.Stats().Complete })
	}
}

// TestPublisherStartsAnew checks that the follower forgets when the publisher is new, even if the
// new publisher already has as many batches as the old one. It does not forget when the same
// publisher comes back.
func TestPublisherStartsAnew(t *testing.T) {
	for _, router := range []string{"127.0.0.1:0", ""} {
		t.Run(fmt.Sprintf("replay %q", router), func(t *testing.T) {
			p := publish(t, "127.0.0.1:0", router)
			f := follow(t, p.endpoints())
			eventually(t, "it listens", func() bool { return p.subscribers() == 1 && f.Stats().Following })
			for i := range 3 {
				p.say(turn(t, prompt, i))
			}
			f.awaits("three", prompt, 3)

			p.cut()
			p.keep(turn(t, prompt, 3))
			eventually(t, "it is back", func() bool { return p.subscribers() == 1 && f.Stats().Connects == 2 })
			if router == "" {
				f.awaits("nothing without a replay", prompt, 0)
			} else {
				f.awaits("four", prompt, 4)
				if s := f.Stats(); s.Epochs != 0 || s.Lost != 0 {
					t.Errorf("%+v", s)
				}
			}

			pub, rep := p.pub.Addr().String(), ""
			if p.router != nil {
				rep = p.router.Addr().String()
			}
			p.close()
			p = publish(t, pub, rep)
			for i := range 6 {
				p.keep(turn(t, prompt[16*20:], i))
			}
			eventually(t, "it is at the other", func() bool { return p.subscribers() == 1 })
			p.say(turn(t, prompt[16*30:], 0))
			f.awaits("the first one's", prompt[:64], 0)
			f.awaits("the last of the other's", prompt[16*30:], 1)
			if router != "" {
				f.awaits("the other's", prompt[16*20:16*30], 6)
			}
		})
	}
}

// TestNumbersGoBack checks that a restarted publisher behind a proxy is noticed without a broken
// connection.
func TestNumbersGoBack(t *testing.T) {
	p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
	f := follow(t, p.endpoints())
	eventually(t, "it listens", func() bool { return p.subscribers() == 1 && f.Stats().Following })
	for i := range 3 {
		p.say(turn(t, prompt, i))
	}
	f.awaits("three", prompt, 3)
	p.mu.Lock()
	p.kept, p.next = nil, 0
	p.mu.Unlock()
	p.keep(turn(t, prompt[160:], 0))
	p.say(turn(t, prompt[160:], 1))
	f.awaits("those of the new one", prompt[160:], 2)
	f.awaits("those of the old one", prompt[:48], 0)
	if s := f.Stats(); s.Epochs != 1 || !s.Complete {
		t.Errorf("%+v", s)
	}
}

// TestSaidToHaveRestarted checks that a call of Restarted makes the follower forget.
func TestSaidToHaveRestarted(t *testing.T) {
	p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
	f := follow(t, p.endpoints())
	eventually(t, "it listens", func() bool { return p.subscribers() == 1 && f.Stats().Following })
	p.say(turn(t, prompt, 0))
	f.awaits("one", prompt, 1)
	p.forget(1)
	f.Restarted()
	f.awaits("nothing", prompt, 0)
	if s := f.Stats(); s.Epochs != 1 {
		t.Errorf("%+v", s)
	}
}

// TestOtherModel checks an engine that comes back at the same addresses with another model. The
// engine is followed under the new name. The name may be known before or after the engine's events,
// with or without a replay.
func TestOtherModel(t *testing.T) {
	for _, router := range []string{"127.0.0.1:0", ""} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("replay %q, known late %v", router, late), func(t *testing.T) {
				var model atomic.Value
				model.Store("m")
				p := publish(t, "127.0.0.1:0", router)
				o := p.endpoints()
				o.Model = func() string { return model.Load().(string) }
				f := follow(t, o)
				eventually(t, "it listens", func() bool { return p.subscribers() == 1 && f.Stats().Following })
				p.say(turn(t, prompt, 0))
				f.awaits("the first one's", prompt, 1)

				o = f.o
				pub, rep := o.Endpoint.Addr, o.Replay.Addr
				p.close()
				model.Store("") // as if the engine listed no model
				if !late {
					model.Store("other")
				}
				p = publish(t, pub, rep)
				eventually(t, "it is at the other", func() bool {
					return p.subscribers() == 1 && f.Stats().Connects >= 2
				})
				p.say(turn(t, prompt[160:], 0))
				if late {
					f.awaits("what came under the old name", prompt[160:], 1)
					model.Store("other")
					eventually(t, "it connects again", func() bool {
						return f.Stats().Connects >= 3 && p.subscribers() == 1
					})
				}
				p.say(turn(t, prompt, 0))
				f.awaitsOf("other", "what is said from then on", prompt[:160], 1)
				if router != "" || !late {
					f.awaitsOf("other", "all that the other one has", prompt[160:], 1)
				}
				f.awaits("the first one's", prompt, 0)
				if s := f.Stats(); s.Epochs == 0 || !s.Following {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// TestGarbage checks that a bad batch, or an excessive length, ends the knowledge but not the
// follower.
func TestGarbage(t *testing.T) {
	long := binary.BigEndian.AppendUint64([]byte{flagLong}, 1<<62)
	for name, garbage := range map[string][]byte{
		"an absurd length":                     long,
		"a frame of 31 MiB that does not come": binary.BigEndian.AppendUint64([]byte{flagLong}, 31<<20),
		"unknown flags":                        {0x40, 0},
		"a long command":                       binary.BigEndian.AppendUint64([]byte{flagLong | flagCommand}, 1<<20),
		"one frame":                            appendFrame(nil, 0, []byte("hello")),
		"a short number":                       appendFrame(appendFrame(nil, flagMore, []byte("1234567")), 0, nil),
	} {
		t.Run(name, func(t *testing.T) {
			p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
			f := follow(t, p.endpoints())
			eventually(t, "it listens", func() bool { return p.subscribers() == 1 && f.Stats().Following })
			p.say(turn(t, prompt, 0))
			f.awaits("one", prompt, 1)
			p.raw(garbage)
			if name == "a frame of 31 MiB that does not come" {
				p.cut()
			}
			eventually(t, "it is back", func() bool { return f.Stats().Connects == 2 && p.subscribers() == 1 })
			p.say(turn(t, prompt, 1))
			f.awaits("two", prompt, 2)
		})
	}
	t.Run("a malformed batch", func(t *testing.T) {
		p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
		f := follow(t, p.endpoints())
		eventually(t, "it listens", func() bool { return p.subscribers() == 1 && f.Stats().Following })
		p.say(turn(t, prompt, 0))
		f.awaits("one", prompt, 1)
		p.say([]byte{0x92, 0x01})
		p.say(turn(t, prompt[160:], 0))
		f.awaits("what came after", prompt[160:], 1)
		f.awaits("what was before", prompt[:16], 0)
		if s := f.Stats(); s.Malformed != 1 || s.Epochs != 1 || s.Connects != 1 || s.Complete {
			t.Errorf("%+v", s)
		}
	})
}

// TestDistrust checks that the knowledge counts for a while after the connection breaks. Then the
// engine counts as one without reports. Everything is known again when the engine is back.
func TestDistrust(t *testing.T) {
	p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
	o := p.endpoints()
	o.Trust = 1
	f := follow(t, o)
	p.say(turn(t, prompt, 0))
	f.awaits("one", prompt, 1)
	pub, router, kept, next := p.pub.Addr().String(), p.router.Addr().String(), p.kept, p.next
	p.close()
	f.awaits("nothing is known", prompt, -1)
	p = publish(t, pub, router)
	p.mu.Lock()
	p.kept, p.next = kept, next
	p.mu.Unlock()
	p.keep(turn(t, prompt, 1))
	f.awaits("two", prompt, 2)
}

// TestComplains checks that the log names a sink that takes no reports once, and once that it takes
// them again.
func TestComplains(t *testing.T) {
	p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
	o := p.endpoints()
	var log logged
	o.SinkName, o.Logger = "kv_events.report", slog.New(slog.NewTextHandler(&log, nil))
	f := follow(t, o)
	f.sink.set(errAway, nil)
	eventually(t, "it listens", func() bool { return p.subscribers() == 1 })
	p.say(turn(t, prompt, 0))
	eventually(t, "reports are refused", func() bool { return f.Stats().Refused > 2 })
	f.sink.set(nil, nil)
	f.awaits("one", prompt, 1)
	eventually(t, "a report was taken", func() bool { return f.Stats().Reports > 0 })
	f.stop()
	for _, once := range []string{"level=WARN msg=\"reports of what", "level=INFO msg=\"reports of what",
		"to=kv_events.report error=away"} {
		if text := log.String(); strings.Count(text, once) != 1 {
			t.Errorf("no line or several with %s in\n%s", once, text)
		}
	}
}

// logged keeps what is logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestSinkFails checks that a sink that was absent, or has lost reports, has all blocks in the end.
// The follower gives way to a later start of the engine.
func TestSinkFails(t *testing.T) {
	for _, fail := range []error{errAway, residency.ErrGap} {
		p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
		f := follow(t, p.endpoints())
		eventually(t, "it listens", func() bool { return p.subscribers() == 1 })
		p.say(turn(t, prompt, 0))
		f.awaits("one", prompt, 1)
		f.sink.set(fail, nil)
		p.say(turn(t, prompt, 1))
		eventually(t, "a report is refused", func() bool { return f.Stats().Refused > 0 })
		p.say(turn(t, prompt, 2))
		f.sink.set(nil, nil)
		f.awaits("all", prompt, 3)
	}
	p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
	f := follow(t, p.endpoints())
	eventually(t, "it listens", func() bool { return p.subscribers() == 1 })
	p.say(turn(t, prompt, 0))
	f.awaits("one", prompt, 1)
	f.mu.Lock()
	later := f.report.epoch + 1
	f.mu.Unlock()
	if err := f.sink.Index.Report(&residency.Report{Engine: "e", Epoch: later, Fresh: true}); err != nil {
		t.Fatal(err)
	}
	p.say(turn(t, prompt, 1))
	eventually(t, "the earlier one is refused", func() bool { return f.Stats().Refused > 2 })
	f.awaits("what the later one has", prompt, 0)
	if err := f.sink.Index.Report(&residency.Report{Engine: "e", Epoch: later, Number: 1, Gone: true}); err != nil {
		t.Fatal(err)
	}
	f.awaits("all, once the later one is gone", prompt, 2)
}

func TestFloodIntoASinkThatStandsStill(t *testing.T) {
	p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
	o := p.endpoints()
	o.MaxBlocks = 1 << 10
	f := follow(t, o)
	p.say(turn(t, prompt, 0))
	f.awaits("one", prompt, 1)
	gate := make(chan struct{})
	f.sink.set(nil, gate)
	const size = 1000
	tokens := count(1<<20, 16*size)
	hashes := make([]any, size)
	for i := range hashes {
		hashes[i] = 1_000_000 + i
	}
	in, out := batchFrom(t, 0, stores(hashes, nil, tokens, 16, nil)), batchFrom(t, 0, removes(hashes, "GPU"))
	for range maxPending/size + 10 {
		p.say(in)
		p.say(out)
	}
	p.say(turn(t, prompt, 1))
	eventually(t, "changes are dropped", func() bool { return f.Stats().Dropped > 0 })
	eventually(t, "all is read", func() bool {
		s := f.Stats()
		return s.Batches == uint64(2*(maxPending/size+10)+2) && s.Blocks == 2
	})
	if s := f.Stats(); s.Pending > maxPending+size {
		t.Errorf("%d digests wait", s.Pending)
	}
	f.sink.set(nil, nil)
	close(gate)
	f.awaits("all", prompt, 2)
	f.awaits("what was removed", tokens, 0)
}

// TestEngineConnects checks publishers that connect to their subscribers.
func TestEngineConnects(t *testing.T) {
	e, err := ParseEndpoint("@ipc://" + t.TempDir() + "/events")
	if err != nil {
		t.Fatal(err)
	}
	f := follow(t, Options{Endpoint: e})
	for round := range 2 {
		var conn net.Conn
		eventually(t, "it listens", func() bool {
			conn, err = net.Dial("unix", e.Addr)
			return err == nil
		})
		s, err := open(conn, "PUB", "SUB")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.message(); err != nil {
			t.Fatal(err)
		}
		p := &publisher{t: t, subs: map[net.Conn]bool{conn: true}}
		p.say(turn(t, prompt[160*round:], 0))
		f.awaits("the block", prompt[160*round:], 1)
		conn.Close()
	}
	f.awaits("that of the first connection", prompt[:160], 0)
}

func TestEndpoints(t *testing.T) {
	for _, text := range []string{"tcp://127.0.0.1:5557", "tcp://[::1]:5557", "tcp://engine.example:5557",
		"ipc:///run/x", "@tcp://127.0.0.1:5557", "@ipc:///run/x", "@tcp://localhost:0"} {
		if e, err := ParseEndpoint(text); err != nil || e.String() != text {
			t.Error(text, e, err)
		}
	}
	for _, text := range []string{"", "127.0.0.1:1", "udp://127.0.0.1:1", "tcp://*:5557", "tcp://:5557", "tcp://h",
		"tcp://h:x", "tcp://h:0", "ipc://x", "@tcp://0.0.0.0:1", "@tcp://10.0.0.1:1", "inproc://x"} {
		if _, err := ParseEndpoint(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestEndpointsOfRanks(t *testing.T) {
	for text, want := range map[string]string{
		"tcp://127.0.0.1:5557": "tcp://127.0.0.1:5560", "tcp://[::1]:65532": "tcp://[::1]:65535",
		"@tcp://localhost:5557": "@tcp://localhost:5560", "tcp://127.0.0.1:65533": "", "@tcp://127.0.0.1:0": "",
		"ipc:///run/x": "",
	} {
		e, err := ParseEndpoint(text)
		if err != nil {
			t.Fatal(err)
		}
		if same, err := e.OfRank(0); err != nil || same != e {
			t.Errorf("%s: rank 0 is %s, %v", text, same, err)
		}
		if third, err := e.OfRank(3); (err == nil) != (want != "") || err == nil && third.String() != want {
			t.Errorf("%s: rank 3 is %s, %v; want %q", text, third, err, want)
		}
	}
	if none, err := (Endpoint{}).OfRank(3); err != nil || none != (Endpoint{}) {
		t.Errorf("no endpoint: %v, %v", none, err)
	}
}

func TestRanksNeedPortsOfTheirOwn(t *testing.T) {
	for _, c := range []struct {
		endpoint, replay string
		ranks            int
		want             string
	}{
		{"tcp://h:5557", "tcp://h:5558", 0, ""},
		{"tcp://h:5557", "tcp://h:5558", 1, ""},
		{"ipc:///run/e", "ipc:///run/r", 1, ""},
		{"tcp://h:5557", "", 8, ""},
		{"tcp://h:5557", "tcp://h:5565", 8, ""},
		{"tcp://h:5557", "tcp://h:5558", 2, "leave 2 ports or more between them"},
		{"tcp://h:5560", "tcp://h:5557", 4, "leave 4 ports or more between them"},
		{"ipc:///run/e", "", 2, "ranks differ by their ports"},
		{"tcp://h:5557", "tcp://h:65535", 2, "rank 1 has no port"},
	} {
		endpoint, err := ParseEndpoint(c.endpoint)
		var replay Endpoint
		if err == nil && c.replay != "" {
			replay, err = ParseEndpoint(c.replay)
		}
		if err != nil {
			t.Fatal(err)
		}
		err = CheckRanks(endpoint, replay, c.ranks)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestStatsOfRanks(t *testing.T) {
	a := Stats{Following: true, Complete: true, Blocks: 3, Pending: 1, Batches: 5, Snapshots: 2}
	b := Stats{Following: true, Blocks: 4, Pending: 2, Batches: 7, Others: 1}
	a.Add(&b)
	want := Stats{Following: true, Blocks: 7, Pending: 3, Batches: 12, Snapshots: 2, Others: 1}
	if a != want {
		t.Errorf("%+v, want %+v", a, want)
	}
	if counts := a.Counts(); len(counts) != len(Counters) || counts[0] != 12 || counts[len(counts)-1] != 2 {
		t.Errorf("%v", counts)
	}
}
