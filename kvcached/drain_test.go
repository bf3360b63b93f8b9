package kvcached

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestASecondSignalCutsTheClosingShort: the stores are not closed in order then, and what was durable is there at the next start.
func TestASecondSignalCutsTheClosingShort(t *testing.T) {
	dir := t.TempDir()
	c, log := settings(t, dir, nil)
	d, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	drain, first := context.WithCancel(context.Background())
	force, second := context.WithCancel(context.Background())
	defer first()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(drain, force) }()
	request, _ := http.NewRequest("PUT", "http://"+d.At("s3")+"/bucket/key", strings.NewReader("object"))
	request.Header.Set("X-Cgn-Durable", "true")
	r, err := http.DefaultClient.Do(request)
	if err != nil || r.StatusCode != 200 {
		t.Fatal(r, err)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	r.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	second()
	first()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), `drain step cut short" step="close the stores`) {
		t.Errorf("it was closed in order:\n%s", log)
	}
	d, _ = begin(t, c)
	if code, body := get(t, "http://"+d.At("s3")+"/bucket/key"); code != 200 || body != "object" {
		t.Errorf("%d %q", code, body)
	}
}

// TestADiskThatDoesNotAnswer has a bound, too.
func TestADiskThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		err := within(ctx, stuckLimit, func() error {
			<-answers
			return nil
		})
		if took := time.Since(begun); !errors.Is(err, errStuck) || took != time.Minute+stuckLimit {
			t.Error(err, took)
		}
		close(answers)
		if err := within(ctx, stuckLimit, func() error { return io.EOF }); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}
