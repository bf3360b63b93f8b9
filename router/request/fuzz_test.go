package request

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/trust"
)

// FuzzOwnHeaders checks what x-cgn-deadline-ms and x-cgn-priority do to a request.
//
//   - A deadline is taken exactly if it is a positive whole number of milliseconds below 2^31, and
//     lies that long after the request's arrival.
//   - A priority is taken only if it is a number, and never exceeds what the client's key allows.
//   - Errors name the header. A header that is there twice never has two effects.
func FuzzOwnHeaders(f *testing.F) {
	for _, values := range [][2]string{
		{"1", "1"}, {"2147483647", "4294967295"}, {"2147483648", "4294967296"}, {"-1", "-1"}, {"0", "1e2"}, {"1e3", "01"},
		{"+5", "1.0"}, {" 5", " 5"}, {"0x10", "true"}, {"1_000", "null"}, {"99999999999999999999", "1 2"}, {"", ""},
		{"5\n6", "1\n2"}, {"\n5", "\n1"}, {"007", "\x00"},
	} {
		f.Add(values[0], values[1], uint8(3))
	}
	whole := regexp.MustCompile(`^[+]?[0-9]+$`)
	f.Fuzz(func(t *testing.T, deadline, priority string, most uint8) {
		h := new(fasthttp.RequestHeader)
		for name, lines := range map[string]string{"x-cgn-deadline-ms": deadline, "x-cgn-priority": priority} {
			for line := range strings.SplitSeq(lines, "\n") {
				h.Add(name, line)
			}
		}
		var own OwnHeaders
		for name, value := range h.All() {
			own.Note(name, value)
		}
		r := &Request{Received: time.Unix(1, 0), Who: &trust.Principal{Priority: most}}
		first, _, _ := strings.Cut(strings.TrimLeft(deadline, "\n"), "\n")
		ms, bad := strconv.ParseInt(first, 10, 64)
		valid := whole.MatchString(first) && bad == nil && ms > 0 && ms <= math.MaxInt32
		switch err := r.ReadDeadline(own.Deadline); {
		case first == "":
			if err != nil || !r.Deadline.IsZero() {
				t.Fatalf("without a deadline: %v, %v", err, r.Deadline)
			}
		case (err == nil) != valid:
			t.Fatalf("%q: %v", first, err)
		case err == nil && r.Deadline.Sub(r.Received) != time.Duration(ms)*time.Millisecond:
			t.Fatalf("%q: %v", first, r.Deadline.Sub(r.Received))
		case err != nil && (err.(*scan.Error).Param != "x-cgn-deadline-ms" || !r.Deadline.IsZero()):
			t.Fatalf("%q: %#v, %v", first, err, r.Deadline)
		}
		if !own.Routing {
			t.Fatal("the priority was not noted")
		}
		err := r.ReadHeaders(h.All())
		if e, ok := err.(*scan.Error); err != nil && (!ok || e.Param != "x-cgn-priority" || e.Message == "") {
			t.Fatalf("%q: %#v", priority, err)
		}
		if err != nil {
			return
		}
		asked, bad := strconv.ParseFloat(strings.TrimSpace(priority), 64)
		if bad != nil || asked < 0 || asked > math.MaxUint32 || asked != math.Trunc(asked) {
			t.Fatalf("%q is taken as a priority", priority)
		}
		if got := r.Priority(); got != min(int(asked), int(most)) || r.Privileged() != "" {
			t.Fatalf("%q of at most %d is %d", priority, most, got)
		}
	})
}
