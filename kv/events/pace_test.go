package events

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestPace checks that any messages are read at no more than the rate and one burst. A pause
// restores the burst.
func TestPace(t *testing.T) {
	for _, size := range []int{0, 100, 10_000, maxMessage} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			p := newPace(began)
			read, pauses := 0, 0
			flood := func(limit time.Duration) {
				for end := time.Now().Add(limit); time.Now().Before(end); read += size + paceMessage {
					if wait := p.take(size, time.Now()); wait > 0 {
						pauses++
						time.Sleep(wait)
					}
				}
			}
			flood(20 * time.Second)
			if most := paceBurst + 21*paceRate + maxMessage; read > most || read < paceBurst+19*paceRate ||
				pauses == 0 || pauses > 2001 {
				t.Errorf("%d bytes of %d at most, %d pauses", read, most, pauses)
			}
			time.Sleep(time.Hour)
			for read = 0; p.take(size, time.Now()) == 0; read += size + paceMessage {
			}
			if read > paceBurst+paceRate/10 || read < paceBurst-maxMessage {
				t.Errorf("%d bytes at once after a rest", read)
			}
		})
	}
}
