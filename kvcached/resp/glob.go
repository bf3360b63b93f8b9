package resp

// matchGlob matches redis' patterns: * ? [a-z] [^a-z] and a backslash before a literal. Its time
// grows at most with the product of both lengths.
func matchGlob(pattern, text []byte) bool {
	p, t := 0, 0
	star, from := -1, 0 // pattern after the last star; text after the bytes that the star matches
	for t < len(text) {
		if p < len(pattern) && pattern[p] == '*' {
			p++
			star, from = p, t
			continue
		}
		if p < len(pattern) {
			if ok, n := matchOne(pattern[p:], text[t]); ok {
				p += n
				t++
				continue
			}
		}
		if star < 0 {
			return false
		}
		from++
		p, t = star, from
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// matchOne matches one byte with the head of a pattern, and returns the length of that head.
// The pattern is not empty and does not begin with a star.
func matchOne(pattern []byte, b byte) (ok bool, n int) {
	switch pattern[0] {
	case '?':
		return true, 1
	case '[':
		return matchClass(pattern, b)
	case '\\':
		if len(pattern) > 1 {
			return pattern[1] == b, 2
		}
	}
	return pattern[0] == b, 1
}

// matchClass matches a byte with a class. A class without its closing bracket reaches to the
// pattern's end.
func matchClass(pattern []byte, b byte) (ok bool, n int) {
	i := 1
	not := i < len(pattern) && pattern[i] == '^'
	if not {
		i++
	}
	for ; i < len(pattern) && pattern[i] != ']'; i++ {
		switch {
		case pattern[i] == '\\' && i+1 < len(pattern):
			i++
			ok = ok || pattern[i] == b
		case i+2 < len(pattern) && pattern[i+1] == '-':
			low, high := min(pattern[i], pattern[i+2]), max(pattern[i], pattern[i+2])
			ok = ok || b >= low && b <= high
			i += 2
		default:
			ok = ok || pattern[i] == b
		}
	}
	return ok != not, min(i+1, len(pattern))
}
