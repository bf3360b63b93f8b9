package jsonscan

import "unicode/utf8"

const hexDigits = "0123456789abcdef"

// AppendQuoted appends s as a JSON string with quotes. s may hold any bytes; invalid UTF-8 becomes
// U+FFFD. U+2028 and U+2029 are escaped, so that no reader sees a line break in the result.
func AppendQuoted[T ~string | ~[]byte](dst []byte, s T) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		run := i
		for run < len(s) && plainBytes[s[run]] {
			run++
		}
		dst = append(dst, s[i:run]...)
		if i = run; i == len(s) {
			break
		}
		if s[i] < utf8.RuneSelf {
			dst = appendQuotedByte(dst, s[i])
			i++
			continue
		}
		// At most four bytes, so that the conversion stays on the stack.
		r, n := utf8.DecodeRuneInString(string(s[i:min(len(s), i+utf8.UTFMax)]))
		switch r {
		case '\u2028':
			dst = append(dst, `\u2028`...)
		case '\u2029':
			dst = append(dst, `\u2029`...)
		default:
			dst = utf8.AppendRune(dst, r)
		}
		i += n
	}
	return append(dst, '"')
}

// plainBytes are the characters that need no escape in a string.
var plainBytes = func() (plain [256]bool) {
	for b := ' '; b < 0x7f; b++ {
		plain[b] = b != '"' && b != '\\'
	}
	return plain
}()

// appendQuotedByte appends the escape of an ASCII character.
func appendQuotedByte(dst []byte, b byte) []byte {
	switch {
	case b == '"' || b == '\\':
		return append(dst, '\\', b)
	case b == '\n':
		return append(dst, '\\', 'n')
	case b == '\r':
		return append(dst, '\\', 'r')
	case b == '\t':
		return append(dst, '\\', 't')
	default:
		return append(dst, '\\', 'u', '0', '0', hexDigits[b>>4], hexDigits[b&15])
	}
}
