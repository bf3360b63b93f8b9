package gateway

import (
	"testing"
	"time"
)

func TestDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 12 * time.Millisecond: "12ms", 18642 * time.Millisecond: "18.642s", 6 * time.Minute: "6m0s",
		time.Second: "1s", 8640 * time.Millisecond: "8.64s", 90500 * time.Millisecond: "1m30.5s", 1: "1ms",
		25*time.Hour + 61*time.Second: "25h1m1s", -5: "0s", 1001 * time.Microsecond: "2ms",
	} {
		if got := string(appendDuration(nil, d)); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
