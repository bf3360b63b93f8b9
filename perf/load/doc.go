// Package load is the client side of measurements: Closed keeps a number of requests in
// flight, Open sends them when they are due, Streams holds many streams at once. All speak
// HTTP/1.1 over plain sockets, one goroutine for each connection, and take as little CPU
// as that allows: the machine belongs to what is measured.
//
// Every answer is read to its end and checked. A stream must end with [DONE] and carry as many
// tokens as were asked for; where the engine stamps them (package instant) each must
// arrive once, in order and in the stream that it was sent on.
package load
