package store

import (
	"errors"
	"testing"

	"github.com/cognitora/dataplane/kvcached/ssd"
)

// TestDiskQuota checks that a block beyond its SSD quota stays in RAM. A durable Put of the block
// is refused.
func TestDiskQuota(t *testing.T) {
	s := open(t, Options{SSD: &ssd.Options{Dir: t.TempDir(), Cap: 64 << 20,
		Quota: func(string) (string, int64) { return "all", 3 * 4096 }}})
	first, second := item(1, false), item(2, false)
	payload := fill(5000, '1')
	if _, err := s.Put(ctx, first, payload, true); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(ctx, second, payload, true); !errors.Is(err, ErrQuota) {
		t.Error("durable:", err)
	}
	put(t, s, second, payload)
	get(t, s, second, payload)
	eventually(t, "it was to be written behind", func() bool { return s.Stats().SSD.OverQuota == 2 })
	eventually(t, "it waits no longer", func() bool { return s.Stats().BehindBytes == 0 })
	if st := s.Stats(); st.BehindFailed != 0 || st.WrittenBehind != 0 || st.SSD.Records != 1 {
		t.Errorf("%+v", st)
	}
	get(t, s, second, payload)
	if there, err := s.Delete(ctx, first.Addr); !there || err != nil {
		t.Fatal(there, err)
	}
	if _, err := s.Put(ctx, second, payload, true); err != nil {
		t.Error("there is room again:", err)
	}
}
