package store

import "fmt"

// SizeError is an ErrTooLarge that names the setting which bounds the size.
type SizeError struct {
	Length  int64  // length of the refused payload, in bytes
	Most    int64  // longest payload that is allowed, in bytes
	Setting string // setting that bounds the size, such as kvcached.ssd
	Size    int64  // value of the setting, in bytes
	Durable bool   // the bound holds only for durable blocks
}

func (e *SizeError) Error() string {
	what := "be kept"
	if e.Durable {
		what = "be durable"
	}
	return fmt.Sprintf("store: too large: this object has %s; with %s = %s at most %d bytes can %s",
		sizeText(e.Length), e.Setting, sizeText(e.Size), e.Most, what)
}

// Is makes errors.Is find ErrTooLarge.
func (e *SizeError) Is(target error) bool { return target == ErrTooLarge }

// sizeText is a number of bytes as text, in the largest unit that divides it.
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
