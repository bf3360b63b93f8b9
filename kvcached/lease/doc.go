// Package lease serves blocks to programs on this host without copying them: the lease socket.
//
// A client connects to a Unix socket and gets the arena's memfd, sealed for reading only. Then it
// asks for blocks and gets places in the arena, each under a lease. The bytes stay until the
// lease's deadline, because the server holds a reference to the block. The deadline is in
// CLOCK_MONOTONIC, so a client sees the end of its lease without asking. A later read may see
// another block's bytes. Package client turns such a read into an error. The server keeps the
// reference for Options.Grace longer, because both sides read the clock at different moments.
//
// A writer asks for a staging segment, a memfd of fixed size, fills it and sends Commit. The server
// copies the bytes into the arena chunk by chunk, and adds each chunk to the checksum while it is
// in the CPU's cache. The checksum is of the copy, so the client cannot make bytes and checksum
// differ.
//
// Each connection has one goroutine, which reads a frame, carries it out and writes the answer.
// Between frames a connection has only 768 bytes of buffers, and 256 more once it has sent names.
// Everything that a client holds ends
// with its connection. References are freed at once if the client closed the connection or died. If
// the server closed it, they are freed after deadline and grace, because the client may still read.
//
// An address has only a digest of its namespace, but requests to other hosts need the namespace's
// text. A client must send Know before it gets blocks of other hosts, unless it has put blocks of
// the namespace. The server forgets a namespace without blocks on this host once 16,384 other
// namespaces of its tenant were used after it. Then the client must send Know again.
//
// A program that serves a node's engine says with Read which namespaces the engine can read. The
// server notes that until the connection ends, and for residency's grace after it.
//
// Options bound connections, leases, leased bytes, staging bytes, buffers for long frames, the time
// to complete a frame and the time to take an answer. The server works on one frame of a connection
// at a time. Other frames wait in the socket, which the kernel bounds.
package lease
