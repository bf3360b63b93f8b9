// Package load is the client side of measurements. Closed keeps a number of requests in flight,
// Open sends them when they are due, and Streams holds many streams at once. All use HTTP/1.1 over
// plain sockets with one goroutine for each connection. Closed, Open and Streams use little CPU, so
// as not to disturb the measured program.
//
// Every answer is read to its end and checked. A stream must end with [DONE] and have the requested
// number of tokens. If the engine stamps tokens (package instant), each must arrive once, in order,
// and in its own stream.
package load
