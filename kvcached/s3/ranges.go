package s3

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// span is a part of an object: n bytes from at.
type span struct {
	at, n   int
	partial bool
}

// parseRange reads a Range header for an object of the given length. As HTTP says, it ignores a
// header that is no single range of bytes. A range without any byte of the object is an
// InvalidRange.
func parseRange(header string, length int) (span, error) {
	whole := span{n: length}
	text, ok := strings.CutPrefix(strings.TrimSpace(header), "bytes=")
	if !ok || strings.Contains(text, ",") {
		return whole, nil
	}
	from, to, ok := strings.Cut(strings.TrimSpace(text), "-")
	if !ok {
		return whole, nil
	}
	if from == "" {
		n, ok := position(to)
		if !ok {
			return whole, nil
		}
		n = min(n, length)
		if n == 0 {
			return span{}, outside(length)
		}
		return span{at: length - n, n: n, partial: true}, nil
	}
	at, ok := position(from)
	if !ok {
		return whole, nil
	}
	last := length - 1
	if to != "" {
		end, ok := position(to)
		if !ok || end < at {
			return whole, nil
		}
		last = min(last, end)
	}
	if at >= length {
		return span{}, outside(length)
	}
	return span{at: at, n: last - at + 1, partial: true}, nil
}

// position reads digits. A number that does not fit becomes a very large one.
func position(text string) (int, bool) {
	if text == "" {
		return 0, false
	}
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 1<<62 - 1, true
	}
	return int(min(n, 1<<62-1)), true
}

func outside(length int) error {
	err := refusal("InvalidRange", "The requested range is not satisfiable.")
	err.header = [2]string{"Content-Range", fmt.Sprintf("bytes */%d", length)}
	return err
}

// contentRange is the Content-Range header of a part.
func (s span) contentRange(length int) string {
	return fmt.Sprintf("bytes %d-%d/%d", s.at, s.at+s.n-1, length)
}

// spanOf is the part that the Range header asks for. For partNumber an object has one part.
func spanOf(r *http.Request, q query, length int) (span, error) {
	if n, err := q.number("partNumber", 1, maxParts, 1); err != nil {
		return span{}, err
	} else if n > 1 {
		return span{}, refusal("InvalidPartNumber", "The requested partnumber is not satisfiable.")
	}
	return parseRange(r.Header.Get("Range"), length)
}
