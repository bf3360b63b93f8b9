package devices

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{"4: ACTIVE": "ACTIVE", "5: LinkUp": "LinkUp", "": "", "ACTIVE": "",
		"x: ACTIVE": "", "4:ACTIVE": ""} {
		if got := parseState(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	for text, want := range map[string]float64{"100 Gb/sec (4X EDR)": 100, "2.5 Gb/sec (1X SDR)": 2.5, "": 0, "fast": 0,
		"NaN Gb/sec": 0, "-1 Gb/sec": 0, "1e300 Gb/sec": 0} {
		if got := parseRate(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	for text, want := range map[string]bool{"fe80:0000:0000:0000:7062:3fff:fef4:13ba": true,
		"fe80::7062:3fff:fef4:13ba": false, "": false, "fe80:0000:0000:0000:7062:3fff:fef4:13bg": false} {
		if _, ok := parseGID(text); ok != want {
			t.Errorf("%q: %v", text, ok)
		}
	}
	if _, ok := parseCounter("N/A (no PMA)"); ok {
		t.Error("not a number")
	}
}

// FuzzFiles parses possible contents of files in sysfs and proc. Parsers never panic, and an
// accepted value equals the text.
func FuzzFiles(f *testing.F) {
	for _, text := range []string{
		"4: ACTIVE", "100 Gb/sec (4X EDR)", "fe80:0000:0000:0000:7062:3fff:fef4:13ba",
		"0000:0000:0000:0000:0000:ffff:c000:0201", "18446744073709551615", "0x1003",
		"Max locked memory         8388608              8388608              bytes     \n",
		"Max locked memory         unlimited            unlimited            bytes     \n",
		"Name:\tx\nCapEff:\t0000000000004000\n", "0 0 4294967295",
		"fe8000000000000070623ffffef413ba 03 40 20 80     cgn0\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if state := parseState(text); state != "" && !strings.Contains(text, state) {
			t.Errorf("state %q", state)
		}
		if rate := parseRate(text); !(rate >= 0 && rate <= 1e6) {
			t.Errorf("rate %v", rate)
		}
		if addr, ok := parseGID(text); ok {
			if again := addr.StringExpanded(); !addr.Is4In6() && !strings.EqualFold(again, text) {
				t.Errorf("GID %s", again)
			}
			p := Port{GIDs: []GID{{Addr: addr, Type: RoCEv2}}}
			if g, found := p.RoCE(); !found || g.Addr != addr || g.reach() < 1 {
				t.Errorf("%+v", g)
			}
		}
		if n, ok := parseCounter(text); ok && strings.TrimLeft(text, "0") != strings.TrimLeft(fmt.Sprint(n), "0") {
			t.Errorf("counter %d", n)
		}
		if limit, ok := parseMemlock(text); ok && limit != unlimited && !strings.Contains(text, "Max locked memory") {
			t.Errorf("limit %d", limit)
		}
		_, _, _ = parseIPCLock(text), parseInitial(text), up(text)
		for _, a := range parseInet6(text, "cgn0") {
			if !a.Is6() || a == (netip.Addr{}) {
				t.Errorf("%s", a)
			}
		}
	})
}
