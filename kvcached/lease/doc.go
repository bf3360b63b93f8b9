// Package lease serves blocks to programs on this host without copying them: the lease socket.
//
// A client connects to a Unix socket, gets the arena's memfd (sealed, so that it can be mapped for
// reading only) and from then on asks for blocks and gets places in the arena. With each comes a
// lease: until its deadline the bytes at that place stay what they are, because the server holds a
// reference to the block. The deadline is told in CLOCK_MONOTONIC, so a client sees without asking
// that its lease has ended; one who still reads then may see another block's bytes and must not use
// them, which package client turns into an error. The reference itself is kept for Options.Grace
// longer, for clocks read at slightly different moments.
//
// A writer asks for a staging segment, a memfd of its own that can be neither shrunk nor grown,
// fills it, and says Commit: the server copies the bytes into the arena and takes the checksum of
// what has arrived there, chunk by chunk, while they are in the CPU's cache. What the client does
// to the segment meanwhile cannot make the two differ.
//
// Each connection has one goroutine, which reads a frame, does what it says and writes the answer;
// nothing is handed to another. Between frames a connection keeps no buffer but 768 bytes. All that
// a client holds ends with its connection: references are freed at once when the client has closed
// it or died, and at deadline and grace when the server closed it, since then the client may still
// be reading.
//
// An address holds no more of its namespace than a digest, and other hosts are asked by the text. A
// client that has put nothing of a namespace says Know before it gets blocks of it that only other
// hosts may have. A namespace of which this host has no blocks, and which nobody has used, is
// forgotten when 16,384 others of its tenant have been used since: then Know is to be said again.
//
// What is bounded: connections in all and of one process, leases and bytes under lease of one
// connection and in all, staging segments and bytes likewise, buffers for long frames, the time in
// which a begun frame must be complete, and the time in which an answer must be taken. One frame of
// a connection is worked on at a time; further ones wait in the socket, which is bounded by the
// kernel.
package lease
