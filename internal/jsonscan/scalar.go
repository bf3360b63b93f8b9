package jsonscan

import "strconv"

// Literal reads null, true or false. The result is true only for true.
func (c *Cursor) Literal() bool {
	word := "null"
	switch c.space() {
	case 't':
		word = "true"
	case 'f':
		word = "false"
	}
	rest := c.buf[c.pos:]
	if len(rest) < len(word) || string(rest[:len(word)]) != word {
		c.unexpected("expected null, true or false")
		return false
	}
	c.pos += len(word)
	return word == "true"
}

// Number reads a number and returns its bytes, which alias the document.
func (c *Cursor) Number() []byte {
	c.space()
	start := c.pos
	if c.at('-') {
		c.pos++
	}
	if c.at('0') {
		c.pos++
	} else {
		c.digits()
	}
	if c.at('.') {
		c.pos++
		c.digits()
	}
	if c.at('e') || c.at('E') {
		c.pos++
		if c.at('+') || c.at('-') {
			c.pos++
		}
		c.digits()
	}
	if c.Failed() {
		return nil
	}
	return c.buf[start:c.pos]
}

// Int reads a number. ok is false if it is not a whole number or does not fit.
func (c *Cursor) Int() (v int64, ok bool) { return Int(c.Number()) }

// Int converts the bytes of a JSON number. 16, 16.0 and 1.6e1 are all 16. ok is false if the number
// is not whole. ok is also false if the number is beyond 2^53 and has a fraction or an exponent.
func Int(number []byte) (v int64, ok bool) {
	digits := number
	negative := len(digits) > 0 && digits[0] == '-'
	if negative {
		digits = digits[1:]
	}
	if len(digits) == 0 || len(digits) > 18 {
		return wholeFloat(number)
	}
	for _, d := range digits {
		if d < '0' || d > '9' {
			return wholeFloat(number)
		}
		v = v*10 + int64(d-'0')
	}
	if negative {
		v = -v
	}
	return v, true
}

// wholeFloat is the slow path of Int, for numbers with a fraction or an exponent.
func wholeFloat(number []byte) (int64, bool) {
	if len(number) > 32 {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(number), 64)
	if v := int64(f); err == nil && f > -(1<<53) && f < 1<<53 && float64(v) == f {
		return v, true
	}
	return 0, false
}

func (c *Cursor) at(b byte) bool { return c.pos < len(c.buf) && c.buf[c.pos] == b }

// digits passes over at least one decimal digit.
func (c *Cursor) digits() {
	start := c.pos
	for c.pos < len(c.buf) && c.buf[c.pos]-'0' <= 9 {
		c.pos++
	}
	if c.pos == start {
		c.unexpected("expected a digit")
	}
}
