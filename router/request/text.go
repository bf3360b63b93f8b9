package request

import "unsafe"

// method is the method's name, of which the common ones cost no memory.
func method(b []byte) string {
	switch string(b) {
	case "POST":
		return "POST"
	case "GET":
		return "GET"
	case "HEAD":
		return "HEAD"
	case "DELETE":
		return "DELETE"
	}
	return string(b)
}

// stringOf is b as a string without a copy, valid for as long as b is.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
