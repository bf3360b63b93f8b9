// Package apikey reads the API keys of engines from files.
package apikey

import (
	"fmt"
	"strings"

	"github.com/cognitora/dataplane/internal/rights"
)

const maxBytes = 4096

// Read returns the key in file. The key must be one word of printable ASCII, because it is sent in
// a header. Blanks and line ends around it are ignored.
func Read(file string) (string, error) {
	raw, err := rights.ReadFile(file)
	if err != nil {
		return "", err
	}
	return Parse(file, string(raw))
}

// Parse returns the key in text, as Read does. from is where the text comes from, for the error.
func Parse(from, text string) (string, error) {
	key := strings.TrimSpace(text)
	if key == "" || len(key) > maxBytes || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s does not hold one key, of printable ASCII without spaces", from)
	}
	return key, nil
}
