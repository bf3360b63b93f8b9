package engine

import (
	"testing"
	"time"
)

// TestModel compares two prompts with results computed by hand: 512 tokens/s, blocks of 16, decode
// steps of 10 ms.
func TestModel(t *testing.T) {
	m, err := NewModel(Config{CacheBlocks: 64, MaxSeqs: 1, PrefillTokensPerSecond: 512,
		DecodeStep: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	blocks := make([]BlockID, 9)
	for i := range blocks {
		blocks[i][0] = byte(i + 1)
	}
	if _, _, busy := m.Begin(0); busy {
		t.Fatal("an idle engine computes")
	}
	first := &Work{Blocks: blocks, PromptTokens: 128, OutputTokens: 3}
	second := &Work{Blocks: blocks, PromptTokens: 128, OutputTokens: 1}
	m.Submit(first, 0)
	m.Submit(second, 0)
	var now, prefill time.Duration
	ends := map[*Work]time.Duration{}
	for {
		step, p, busy := m.Begin(now)
		if !busy {
			break
		}
		now += step
		prefill += p
		m.End(func(w *Work) { ends[w] = now })
	}
	const (
		firstToken = 250 * time.Millisecond           // 128 tokens
		firstEnd   = firstToken + 20*time.Millisecond // two decode steps
		secondEnd  = firstEnd + 16*time.Second/512    // the last block of a prompt is always computed
	)
	if first.FirstToken() != firstToken || ends[first] != firstEnd || first.CachedTokens() != 0 {
		t.Errorf("first: token at %v, end at %v, %d cached", first.FirstToken(), ends[first], first.CachedTokens())
	}
	if second.FirstToken() != secondEnd || ends[second] != secondEnd || second.CachedTokens() != 112 {
		t.Errorf("second: token at %v, end at %v, %d cached", second.FirstToken(), ends[second], second.CachedTokens())
	}
	if want := 144 * time.Second / 512; prefill != want {
		t.Errorf("%v of prefill, want %v", prefill, want)
	}
	if n := m.Cached(blocks); n != 8 {
		t.Errorf("%d blocks are cached, want 8", n)
	}
}

// TestModelSpeed: speed divides the time of a step, and a slowdown multiplies it for a time.
func TestModelSpeed(t *testing.T) {
	slow, err := ParseSlowdown("1s-2s=5")
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewModel(Config{CacheBlocks: 1024, PrefillTokensPerSecond: 500, Speed: 2, Slowdowns: []Slowdown{slow}})
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []time.Duration{999 * time.Millisecond, time.Second, 2 * time.Second} {
		want := 100 * time.Millisecond
		if at == time.Second {
			want *= 5
		}
		m.Submit(&Work{PromptTokens: 100, OutputTokens: 1}, at)
		if u := m.Usage(); u.Waiting != 1 || u.Running != 0 || u.UsedBlocks != 0 || u.Blocks != 1024 {
			t.Errorf("before the step: %+v", u)
		}
		step, prefill, _ := m.Begin(at)
		if step != want || prefill != want {
			t.Errorf("the step at %v took %v, %v of prefill, want %v", at, step, prefill, want)
		}
		if u := m.Usage(); u.Waiting != 0 || u.Running != 1 || u.UsedBlocks != 7 {
			t.Errorf("in the step: %+v", u)
		}
		m.End(func(w *Work) {
			if w.Produced() != 1 {
				t.Errorf("%d tokens", w.Produced())
			}
		})
	}
	for _, bad := range []string{"", "1s", "1s-2s", "2s-1s=5", "1s-2s=0", "1s-2s=Inf", "-1s-2s=3", "1-2=3"} {
		if d, err := ParseSlowdown(bad); err == nil {
			t.Errorf("%q was read as %+v", bad, d)
		}
	}
	if _, err := NewModel(Config{Slowdowns: []Slowdown{{From: 2, To: 1, Factor: 1}}}); err == nil {
		t.Error("a slowdown that ends before it begins was taken")
	}
}

// TestModelHandsOver: one model computes a prompt and keeps its blocks until they are read. Another
// one computes the last token only.
func TestModelHandsOver(t *testing.T) {
	model := func() *Model {
		m, err := NewModel(Config{CacheBlocks: 64, PrefillTokensPerSecond: 512, DecodeStep: 10 * time.Millisecond,
			DecodePerSequence: time.Nanosecond})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	finish := func(m *Model, w *Work) (took time.Duration) {
		m.Submit(w, 0)
		for {
			step, _, busy := m.Begin(took)
			if !busy {
				return took
			}
			took += step
			m.End(func(*Work) {})
		}
	}
	blocks := make([]BlockID, 9)
	for i := range blocks {
		blocks[i][0] = byte(i + 1)
	}
	p, d := model(), model()
	prompt := &Work{Blocks: blocks, PromptTokens: 128, OutputTokens: 1, Lent: true}
	if took := finish(p, prompt); took != 250*time.Millisecond {
		t.Errorf("the prompt took %v", took)
	}
	if u := p.Usage(); u.UsedBlocks != 8 || u.Prefilled != 128 {
		t.Errorf("before the read: %+v", u)
	}
	p.Return(prompt)
	if u := p.Usage(); u.UsedBlocks != 0 || p.Cached(blocks) != 8 {
		t.Errorf("after the read: %+v, %d blocks cached", u, p.Cached(blocks))
	}
	took := finish(d, &Work{Blocks: blocks, PromptTokens: 128, OutputTokens: 3, Received: true})
	if took < 30*time.Millisecond || took > 31*time.Millisecond {
		t.Errorf("3 tokens took %v", took)
	}
	if u := d.Usage(); u.Prefilled != 0 || u.UsedBlocks != 0 || d.Cached(blocks) != 8 {
		t.Errorf("after the answer: %+v, %d blocks cached", u, d.Cached(blocks))
	}
}
