package cluster

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of a node's labels. With these limits the labels fit in the node's value in etcd.
const (
	maxLabels     = 32
	maxLabelBytes = 128
)

// CheckLabels validates the labels of a node. A label is a word such as gpu=h100 or fast.
func CheckLabels(labels []string) error {
	if len(labels) > maxLabels {
		return fmt.Errorf("%d labels; a node has at most %d", len(labels), maxLabels)
	}
	for i, label := range labels {
		if err := CheckLabel(label); err != nil {
			return err
		}
		if slices.Contains(labels[:i], label) {
			return fmt.Errorf("%q is given twice; leave one out", label)
		}
	}
	return nil
}

// CheckLabel validates one label.
func CheckLabel(label string) error {
	switch {
	case label == "":
		return fmt.Errorf("a label is empty; write a word such as gpu=h100")
	case len(label) > maxLabelBytes:
		return fmt.Errorf("%.40q... has %d bytes; a label has at most %d", label, len(label), maxLabelBytes)
	case !utf8.ValidString(label) || strings.ContainsFunc(label, unfitForLabel):
		return fmt.Errorf("%q holds a space, a comma, a quote or a character that cannot be printed; write a word such "+
			"as gpu=h100", label)
	}
	return nil
}

func unfitForLabel(c rune) bool {
	return c == ',' || c == '"' || unicode.IsSpace(c) || !unicode.IsPrint(c)
}
