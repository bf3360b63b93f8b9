package cluster

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of a node's experts. With these limits the experts fit in the node's value in etcd.
const (
	maxExperts     = 64
	maxExpertBytes = 32
)

// Experts are the experts of a mixture-of-experts model that a node hosts. An entry is a number, a
// range of numbers such as 0-127, or a name.
type Experts []string

// Has says whether the node hosts the expert with the given name or number. Has allocates nothing.
func (e Experts) Has(expert string) bool {
	number := isNumber(expert)
	for _, entry := range e {
		if entry == expert {
			return true
		}
		if !number {
			continue
		}
		if low, high, ok := rangeOf(entry); ok && !below(expert, low) && !below(high, expert) {
			return true
		}
	}
	return false
}

// Check validates the entries.
func (e Experts) Check() error {
	if len(e) > maxExperts {
		return fmt.Errorf("%d entries; a node has at most %d, write ranges such as 0-127", len(e), maxExperts)
	}
	for _, entry := range e {
		if err := checkExpert(entry); err != nil {
			return err
		}
	}
	return nil
}

func checkExpert(entry string) error {
	switch {
	case entry == "":
		return errors.New("an expert is empty; write a number, a range such as 0-127, or a name")
	case len(entry) > maxExpertBytes:
		return fmt.Errorf("%.40q... has %d bytes; an expert has at most %d", entry, len(entry), maxExpertBytes)
	case !utf8.ValidString(entry) || strings.ContainsFunc(entry, unfitForLabel):
		return fmt.Errorf("%q holds a space, a comma, a quote or a character that cannot be printed; write a number, a "+
			"range such as 0-127, or a name", entry)
	}
	// A name that looks like a number would match no request.
	numeric := strings.Trim(entry, "0123456789-") == ""
	low, high, ok := rangeOf(entry)
	if numeric && !isNumber(entry) && (!ok || below(high, low)) {
		return fmt.Errorf("%q is no number and no range; write 7, or 0-127 with the lower number first", entry)
	}
	return nil
}

// rangeOf returns the ends of an entry such as 0-127. ok is false for another entry.
func rangeOf(entry string) (low, high string, ok bool) {
	low, high, ok = strings.Cut(entry, "-")
	return low, high, ok && isNumber(low) && isNumber(high)
}

// isNumber says whether text is a whole number in its usual spelling.
func isNumber(text string) bool {
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return text == "0" || text != "" && text[0] != '0'
}

// below says whether the number a is less than the number b.
func below(a, b string) bool { return len(a) < len(b) || len(a) == len(b) && a < b }
