// Package apikey reads the API keys of engines from files.
package apikey

import (
	"fmt"
	"os"
	"strings"
)

const maxBytes = 4096

// Read returns the key in file. The key must be one word of printable ASCII, because it is sent in
// a header. Blanks and line ends around it are ignored.
func Read(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(raw))
	if key == "" || len(key) > maxBytes || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s does not hold one key, of printable ASCII without spaces", file)
	}
	return key, nil
}
