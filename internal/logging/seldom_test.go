package logging

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestSeldom checks that one event of a subject is logged at a time, with the number of suppressed
// ones, and that the known subjects are bounded.
func TestSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Seldom{Every: time.Second}
		var out strings.Builder
		log := slog.New(slog.NewTextHandler(&out, nil))
		for range 3 {
			out.Reset()
			for range 100 {
				s.Warn(log, "a", "it failed", "n", 1)
			}
			if strings.Count(out.String(), "it failed") != 1 {
				t.Error(out.String())
			}
			time.Sleep(s.Every)
		}
		if !strings.HasSuffix(out.String(), "n=1 suppressed=99\n") {
			t.Error(out.String())
		}
		for i := range 3 * maxSubjects {
			if _, due := s.Due(fmt.Sprint(i)); !due {
				t.Errorf("subject %d is suppressed", i)
			}
		}
		if len(s.subjects) > maxSubjects {
			t.Error(len(s.subjects))
		}
	})
}
