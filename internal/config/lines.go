package config

import (
	"fmt"
	"strings"
)

// lineIndex finds the line of each key of a TOML document that the decoder has
// accepted, so that an error can name it. Keys: "limits.max_body",
// "backend[1].url".
type lineIndex map[string]int

// of returns the line of path or of the nearest table around it; 0 if unknown.
func (x lineIndex) of(path string) int {
	for path != "" {
		if n, ok := x[path]; ok {
			return n
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 0
}

func indexLines(doc string) lineIndex {
	x, tables, table, quote := lineIndex{}, map[string]int{}, "", ""
	for i, line := range strings.Split(doc, "\n") {
		if quote != "" {
			if strings.Contains(line, quote) {
				quote = ""
			}
			continue
		}
		line = strings.TrimSpace(line)
		switch name, isKey := keyOf(line); {
		case strings.HasPrefix(line, "[[") && !isKey:
			name = clean(strings.TrimPrefix(line, "[["))
			table = fmt.Sprintf("%s[%d]", name, tables[name])
			tables[name]++
			x.add(table, i)
		case strings.HasPrefix(line, "[") && !isKey:
			table = clean(strings.TrimPrefix(line, "["))
			for list, n := range tables { // a table of the list's last element
				if rest, ok := strings.CutPrefix(table, list+"."); ok {
					table = fmt.Sprintf("%s[%d].%s", list, n-1, rest)
				}
			}
			x.add(table, i)
		case isKey:
			x.add(join(table, clean(name)), i)
			quote = opensQuote(line)
		}
	}
	return x
}

func (x lineIndex) add(path string, i int) {
	if _, ok := x[path]; !ok {
		x[path] = i + 1
	}
}

// keyOf returns the text before '=' of a "key = value" line.
func keyOf(line string) (string, bool) {
	if line == "" || line[0] == '#' || line[0] == '[' {
		return "", false
	}
	key, _, ok := strings.Cut(line, "=")
	return key, ok
}

func clean(name string) string {
	name, _, _ = strings.Cut(name, "]")
	parts := strings.Split(name, ".")
	for i, p := range parts {
		parts[i] = strings.Trim(strings.TrimSpace(p), `"'`)
	}
	return strings.Join(parts, ".")
}

// opensQuote returns the mark of a multi-line string that line leaves open.
func opensQuote(line string) string {
	for _, q := range []string{`"""`, `'''`} {
		if strings.Count(line, q)%2 == 1 {
			return q
		}
	}
	return ""
}
