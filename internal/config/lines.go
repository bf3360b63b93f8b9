package config

import (
	"fmt"
	"strings"
)

// lineIndex finds the line of each key of a TOML document that the decoder has
// accepted, so that an error can name it. Keys: "limits.max_body",
// "backend[1].url".
type lineIndex map[string]int

// of returns the line of path, or of the nearest table around it; 0 if unknown.
func (x lineIndex) of(path string) int {
	for path != "" {
		for _, at := range []string{path, path + "[0]"} { // a list of tables stands at its first one
			if n, ok := x[at]; ok {
				return n
			}
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 0
}

func indexLines(doc string) lineIndex {
	x, lists, table, quote := lineIndex{}, listLengths{}, "", ""
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
			table = lists.more(clean(strings.TrimPrefix(line, "[[")))
			x.add(table, i)
		case strings.HasPrefix(line, "[") && !isKey:
			table = lists.last(clean(strings.TrimPrefix(line, "[")))
			x.add(table, i)
		case isKey:
			x.add(join(table, clean(name)), i)
			quote = opensQuote(line)
		}
	}
	return x
}

// listLengths holds the number of elements so far of each list of tables, by its path: "engine",
// "engine[1].user".
type listLengths map[string]int

// last returns the path of a table. A list in its name means the list's last element.
func (l listLengths) last(name string) string {
	path := ""
	for _, part := range strings.Split(name, ".") {
		path = join(path, part)
		if n := l[path]; n > 0 {
			path = fmt.Sprintf("%s[%d]", path, n-1)
		}
	}
	return path
}

// more returns the path of a new element of a list.
func (l listLengths) more(name string) string {
	list := name
	if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
		list = join(l.last(name[:dot]), name[dot+1:])
	}
	l[list]++
	return fmt.Sprintf("%s[%d]", list, l[list]-1)
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
