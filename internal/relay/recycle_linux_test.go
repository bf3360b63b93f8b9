package relay

import (
	"errors"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/cognitora/dataplane/internal/sse"
)

// TestRecycling marks every field of the reused structs, at any depth. After recycle, only reused
// memory may contain marks.
func TestRecycling(t *testing.T) {
	s := streams.New().(*relayedReply)
	x := new(Exchange)
	f := newFlow()
	n := newErrand(endStream, nil)
	c := newCapture()
	for name, p := range map[string]struct {
		of      any
		recycle func()
		kept    []string
	}{
		"stream": {s, s.recycle, []string{"source.filter.cut.held", "source.filter.parse.joined", "show", "out"}},
		"Exchange": {x, x.recycle, []string{"work.outgoing.line", "work.outgoing.segments", "work.outgoing.scratch",
			"work.head.fields", "work.head.length", "work.scan.cut.held", "work.scan.parse.joined"}},
		"flow":    {f, f.recycle, []string{"timer.flow", "unsent.bytes", "handOver"}},
		"errand":  {n, n.recycle, []string{"do"}},
		"capture": {c, c.recycle, []string{"source.filter.cut.held", "source.filter.parse.joined", "show"}},
	} {
		t.Run(name, func(t *testing.T) {
			v := reflect.ValueOf(p.of).Elem()
			bound := marked(v, "", p.kept)
			p.recycle()
			left := remains(v, "", nil)
			slices.Sort(left)
			slices.Sort(p.kept)
			if !slices.Equal(left, p.kept) {
				t.Errorf("left: %q, kept: %q", left, p.kept)
			}
			if bound == 0 {
				t.Error("nothing was marked")
			}
		})
	}
	if x.head.length != lengthUntilClose {
		t.Errorf("the length of no head is %d", x.head.length)
	}
}

// marks are values for fields of these interface types.
var marks = []any{&net.TCPConn{}, errors.New("mark"), newObserved(), new(flow), new(clientConn), sse.Show(nil)}

// marked sets every field of v, except functions and back pointers that are bound once. marked
// returns the number of fields.
func marked(v reflect.Value, path string, kept []string) (n int) {
	switch v.Type() {
	case reflect.TypeFor[sync.Mutex]():
		return 0
	case reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(7, 7)))
		return 1
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			n += marked(reach(v, i), join(path, v.Type().Field(i).Name), kept)
		}
		return n
	case reflect.Array:
		for i := range v.Len() {
			n += marked(v.Index(i), path, kept)
		}
		return n
	case reflect.Pointer, reflect.Func:
		if slices.Contains(kept, path) {
			return 0
		}
		if v.Kind() == reflect.Pointer {
			v.Set(reflect.New(v.Type().Elem()))
		} else {
			v.Set(reflect.MakeFunc(v.Type(), nil))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 3, 3))
		for i := range 3 {
			n += marked(v.Index(i), path, kept)
		}
		v.SetLen(2)
	case reflect.Interface:
		for _, m := range marks {
			if reflect.TypeOf(m).Implements(v.Type()) {
				v.Set(reflect.ValueOf(m))
			}
		}
		if v.IsNil() {
			panic("no mark for " + path)
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("mark")
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	default:
		v.SetUint(7)
	}
	return n + 1
}

// remains appends the paths of fields that are not zero in v. Reused memory with pointers must be
// zero too.
func remains(v reflect.Value, path string, left []string) []string {
	switch {
	case v.Type() == reflect.TypeFor[sync.Mutex]():
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			left = remains(reach(v, i), join(path, v.Type().Field(i).Name), left)
		}
	case v.Kind() == reflect.Slice && v.Cap() > 0:
		left = append(left, path)
		all := v.Slice(0, v.Cap())
		for i := range all.Len() {
			if e := all.Index(i); v.Len() > 0 || e.Kind() == reflect.Slice && !e.IsNil() {
				left = append(left, path+" is not empty")
			}
		}
	case !v.IsZero():
		left = append(left, path)
	}
	return left
}

// reach returns field i of v, exported or not.
func reach(v reflect.Value, i int) reflect.Value {
	f := v.Field(i)
	return reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem()
}

func join(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }
