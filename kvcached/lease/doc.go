// Package lease serves blocks to programs on this host without copying them: the lease socket.
//
// A client connects to a Unix socket and gets the arena's memfd, sealed for reading only. Then it
// asks for blocks and gets places in the arena, each under a lease. Until the lease's deadline the
// bytes stay, because the server holds a reference to the block. The deadline is in
// CLOCK_MONOTONIC, so that a client sees the end of its lease without asking. A later read may see
// another block's bytes, which package client turns into an error. The server keeps the reference
// for Options.Grace longer, as both read the clock at slightly different moments.
//
// A writer asks for a staging segment, a memfd of fixed size, fills it and sends Commit. The server
// copies the bytes into the arena and takes the checksum of the copy, chunk by chunk, while they
// are in the CPU's cache. So the client cannot make bytes and checksum differ.
//
// Each connection has one goroutine, which reads a frame, carries it out and writes the answer.
// Between frames a connection has only 768 bytes of buffers. Everything that a client holds ends
// with its connection. If the client closed it or died, references are freed at once. If the server
// closed it, they are freed at deadline and grace, as the client may still be reading.
//
// An address has only a digest of its namespace, but other hosts are asked by the namespace's text.
// A client that has put nothing of a namespace sends Know before it gets blocks of other hosts. The
// server forgets a namespace without blocks on this host once 16,384 other namespaces of its tenant
// were used since its last use. Then the client must send Know again.
//
// These are bounded: connections in all and of one process, leases and leased bytes of one
// connection and in all, staging segments and bytes likewise, buffers for long frames, the time to
// complete a begun frame, and the time to take an answer. One frame of a connection is worked on at
// a time. Others wait in the socket, which the kernel bounds.
package lease
