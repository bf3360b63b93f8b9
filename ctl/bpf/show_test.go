package bpf

import (
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/ctl/cli"
)

// largeHost returns a host of 128 CPUs with ports and peers, and all of its counts. Each count is a
// different number, from the number from on.
func largeHost(from int) (k *kernel, counts []int64) {
	k = &kernel{RunDelay: bpf.Histogram{Count: 5}}
	for i := range 128 {
		k.CPUs = append(k.CPUs, bpf.CPU{ID: i, Busy: time.Duration(from+i) * time.Second, Idle: 200 * time.Second,
			Switches: uint64(from + i)})
	}
	port := kernelPort{Port: bpf.Port{Port: 8000}}
	peer := bpf.Peer{Addr: netip.MustParseAddrPort("10.1.2.3:8000")}
	number := from
	for _, part := range []any{&port.Sockets, &port.Tokens, &peer.Sockets} {
		v := reflect.ValueOf(part).Elem()
		for i := range v.NumField() {
			switch f := v.Field(i); f.Kind() {
			case reflect.Uint64:
				f.SetUint(uint64(number))
			case reflect.Int64: // a duration
				f.SetInt(int64(number) * int64(time.Millisecond))
			}
			counts = append(counts, int64(number))
			number++
		}
	}
	k.Groups = []bpf.Group{{Root: 77, CPU: time.Second, Delay: time.Second, Runs: 9}}
	k.Ports, k.Peers = []kernelPort{port}, []bpf.Peer{peer}
	return k, counts
}

// ofAttempts are fields about connection attempts, which ports do not have.
var ofAttempts = map[string]bool{"Refused": true, "Unanswered": true, "Abandoned": true}

// derived are fields that are shown only by their parts, or only as part of others.
var derived = map[string]bool{"TTFT": true, "ITL": true, "SinglesTime": true, "RTTLooks": true, "RTTSum": true}

// TestBPFShowsAll: each figure of ports, their tokens and peers is shown.
func TestBPFShowsAll(t *testing.T) {
	k, counts := largeHost(101)
	var out strings.Builder
	a := &cli.App{Out: &out, Output: "table"}
	if err := a.Show(nil, k.picture(nil).Write); err != nil {
		t.Fatal(err)
	}
	_, below, _ := strings.Cut(out.String(), "PROCESSES OF")
	i := 0
	for n, of := range []any{bpf.Sockets{}, bpf.Tokens{}, bpf.Sockets{}} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(of)) {
			if shown := regexp.MustCompile(fmt.Sprintf(`\b%d(ms| B|B/s|B|\b)`, counts[i])); !derived[f.Name] &&
				(n > 0 || !ofAttempts[f.Name]) && !shown.MatchString(below) {
				t.Errorf("%T.%s, %d, is not in\n%s", of, f.Name, counts[i], below)
			}
			i++
		}
	}
}

// figuresOfNow are fields that are present values, not counts.
var figuresOfNow = map[string]bool{"Established": true, "RTT": true, "RTTMin": true, "DeliveryRate": true,
	"RTTMean": true}

// TestBPFSince: since returns the difference of each count between two looks.
func TestBPFSince(t *testing.T) {
	before, _ := largeHost(1000)
	now, _ := largeHost(3000)
	d := now.since(before)
	for _, part := range []any{d.Ports[0].Sockets, d.Ports[0].Tokens, d.Peers[0].Sockets} {
		v := reflect.ValueOf(part)
		for i, f := range reflect.VisibleFields(v.Type()) {
			is := v.Field(i)
			want := map[reflect.Kind]any{reflect.Uint64: uint64(2000), reflect.Int64: 2 * time.Second}[f.Type.Kind()]
			if want != nil && !figuresOfNow[f.Name] && is.Interface() != want {
				t.Errorf("%T.%s: %v, not %v", part, f.Name, is, want)
			}
		}
	}
	if d.CPUs[5].Busy != 2000*time.Second || d.CPUs[5].Switches != 2000 {
		t.Errorf("CPU: %+v", d.CPUs[5])
	}
	if anew := before.since(now); !reflect.DeepEqual(anew.CPUs, before.CPUs) ||
		!reflect.DeepEqual(anew.Ports, before.Ports) || !reflect.DeepEqual(anew.Peers, before.Peers) {
		t.Errorf("what was made anew does not count from its beginning: %+v", anew.CPUs[5])
	}
}

var (
	moreRows = regexp.MustCompile(`(\d+) more CPUs`)
	aCPU     = regexp.MustCompile(`^\d+ +[\d.]+ % +\d+$`)
)

// TestPicturesFit: in terminals of all sizes, each line fits, and the first is the headline. The
// parts shown and the parts reported as left out are together all parts.
func TestPicturesFit(t *testing.T) {
	k, _ := largeHost(1)
	before, _ := largeHost(1)
	for i := range k.CPUs {
		k.CPUs[i].Busy, k.CPUs[i].Idle = k.CPUs[i].Busy+time.Duration(i)*time.Second, k.CPUs[i].Idle+200*time.Second
	}
	p := k.picture(before)
	if p.Pieces[0].Rows[0][0] != "127" {
		t.Errorf("the first CPU is %q", p.Pieces[0].Rows[0])
	}
	p.Head = append(p.Head, "a second part of it that is long", "and a third one")
	for columns := 1; columns <= 300; columns += 1 + columns/10 {
		for rows := 1; rows <= 200; rows += 1 + rows/10 {
			lines := p.Fit(columns, rows)
			if len(lines) > rows {
				t.Fatalf("%d rows in %d", len(lines), rows)
			}
			cpus := 0
			for _, l := range lines {
				if utf8.RuneCountInString(l) > columns {
					t.Fatalf("%d columns: %q", columns, l)
				}
				if aCPU.MatchString(l) {
					cpus++
				}
			}
			if shown := strings.TrimSuffix(lines[0], "…"); !strings.HasPrefix(p.Head[0]+";", shown) &&
				!strings.HasPrefix(lines[0], p.Head[0]) {
				t.Fatalf("%d x %d: the headline is %q", columns, rows, lines[0])
			}
			if columns < 80 || rows < 4 {
				continue // the text about left-out parts is cut too
			}
			said := 0
			if m := moreRows.FindStringSubmatch(lines[len(lines)-1]); m != nil {
				said, _ = strconv.Atoi(m[1])
			}
			if cpus+said != len(k.CPUs) {
				t.Fatalf("%d x %d: %d CPUs are shown and %d left out, of %d:\n%s", columns, rows, cpus, said,
					len(k.CPUs), strings.Join(lines, "\n"))
			}
		}
	}
}
