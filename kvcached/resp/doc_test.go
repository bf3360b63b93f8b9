package resp

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTheDocumentNamesTheCommands holds docs/kvcached.md to the table.
func TestTheDocumentNamesTheCommands(t *testing.T) {
	page, err := os.ReadFile("../../docs/kvcached.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "as redis: ")
	list, _, found := strings.Cut(strings.ReplaceAll(rest, "\n", " "), ". No lists")
	if !found {
		t.Fatal("the list of commands is not where it was")
	}
	var named, known []string
	for _, m := range regexp.MustCompile("`([A-Z]+)`").FindAllStringSubmatch(list, -1) {
		named = append(named, strings.ToLower(m[1]))
	}
	for name := range commands {
		known = append(known, name)
	}
	slices.Sort(known)
	slices.Sort(named)
	if !slices.Equal(named, known) {
		t.Errorf("the document has %v, the server %v", named, known)
	}
}
