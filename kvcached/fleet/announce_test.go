package fleet

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// lines counts the log lines with a text.
type lines struct {
	mu   sync.Mutex
	text string
	n    int
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.Contains(string(line), l.text) {
		l.n++
	}
	return len(line), nil
}

func (l *lines) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// TestBlocksThatCannotBeListed checks a store that cannot list its blocks. The keeper then forgets
// no block of its own host, and the failure is logged once.
func TestBlocksThatCannotBeListed(t *testing.T) {
	log := &lines{text: "cannot be listed"}
	a := start(t, "a", Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	k := addr(1)
	a.put(blocks, k, "x")
	known := func() bool { return len(a.keeper.locate(&k)) == 1 }
	eventually(t, "the keeper knows the block", known)
	if err := a.Store.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		before := a.Stats().Overruns
		a.tellAll()
		eventually(t, "a snapshot has begun", func() bool { return a.Stats().Overruns > before })
	}
	eventually(t, "it is logged", func() bool { return log.count() > 0 })
	time.Sleep(retryLast + retryLast/2)
	if !known() || log.count() != 1 {
		t.Errorf("known: %v, %d log lines", known(), log.count())
	}
}
