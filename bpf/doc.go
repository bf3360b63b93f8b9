// Package bpf measures the load of a Linux host and the state of its sockets in the kernel: per-CPU
// utilisation, waits for a CPU, CPU time of process trees, connections by peer and by listening
// port, and the times to the first token and between tokens of any engine that answers over HTTP/1
// on a port.
//
// # Programs
//
// Load puts programs and maps under /sys/fs/bpf/cognitora (maps/, progs/, links/). The programs and
// maps stay and go on counting when the process ends. The next Load uses the same maps. Open reads
// programs and maps without changing anything. Clean removes all programs and maps. `bpftool map
// dump pinned /sys/fs/bpf/cognitora/maps/NAME` prints the data that Go reads. The .bpf.c and .h
// files in this folder describe each map.
//
// # Upgrade
//
// Programs are replaced atomically, so no event is missed. A tracepoint keeps a dispatcher that
// jumps to the program in a slot, and a cgroup's link can be given another program. A map is used
// again if its layout is the same: type, number of entries, and the names, places and sizes of
// fields. If the layout of one map differs, Load removes all programs and maps, and all counts
// begin anew.
//
// # Rights
//
// Load needs CAP_BPF, CAP_PERFMON (tracepoints, reading kernel memory by its types), CAP_NET_ADMIN
// (programs of sockets and packets), and a BPF file system to which it may write. Load needs no
// other capability, and not root. Process ids are those of the host, so a process in a PID
// namespace must not watch any. If a part cannot be loaded, the rest works, and Missing reports the
// part and the reason. If nothing can be loaded, New returns a reader of /proc, sock_diag and
// cgroup files.
//
// # Privacy
//
// No payload is copied out of the kernel. The programs look at two bytes, with which a request to a
// watched port may begin, and do not keep them. The two bytes are the first two bytes on a
// connection, after an answer has begun, or after 100 Continue; in the last case they belong to a
// body. The programs compare the two bytes with the first bytes of HTTP/1 methods, of HTTP/2 and of
// TLS. All other figures come from packet headers, sizes and times.
//
// # Limits of tokens
//
// Only answers to POST with at least three pieces are measured. So requests for an engine's health
// and metrics count in no figure. The first piece of a stream counts as the head alone in three
// cases. First, the piece has at most 320 bytes and is less than 80 bytes larger than a token.
// Second, the piece went out in less than half of a token's time, and the gap after the piece is
// three times as long as the next gap. Third, at least two earlier streams of the port with a first
// piece of the same size were in the second case. The first piece counts as a head with the first
// token if neither condition on times holds. In all other cases the time to the first token is not
// counted (Tokens.Unclear). So an engine is measured wrongly if it holds a large head back for
// longer than half a token's time, and then sends the first token within three tokens' time. The
// error lasts until longer prompts have shown the size of the engine's head.
//
// Tokens of less than 80 bytes are not counted. If an engine sends several tokens in each piece,
// the gaps between pieces are measured. A piece of at least 4 KiB is not a token. A segment that
// the engine had written before the previous segment went out has only waited for the network, so
// the gap before it is not counted.
package bpf
