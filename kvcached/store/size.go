package store

import "fmt"

// SizeError is an ErrTooLarge whose reason is a setting.
type SizeError struct {
	Length  int64  // of the payload that was refused, bytes
	Most    int64  // that would do, bytes
	Setting string // what bounds it, such as kvcached.ssd
	Size    int64  // what that is, bytes
	Durable bool   // the bound is that of durable blocks only
}

func (e *SizeError) Error() string {
	what := "be kept"
	if e.Durable {
		what = "be durable"
	}
	return fmt.Sprintf("store: too large: this object has %s; with %s = %s at most %d bytes can %s",
		sizeText(e.Length), e.Setting, sizeText(e.Size), e.Most, what)
}

// Is makes it an ErrTooLarge.
func (e *SizeError) Is(target error) bool { return target == ErrTooLarge }

// sizeText is a number of bytes, in the unit of the configuration where it is a multiple of that.
func sizeText(n int64) string {
	for _, u := range []struct {
		unit int64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n > 0 && n%u.unit == 0 {
			return fmt.Sprintf("%d %s", n/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
