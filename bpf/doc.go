// Package bpf reads from the Linux kernel how busy a host is and how its sockets do: per-CPU
// utilisation, waits for a CPU, CPU time of process trees, connections by peer and by listening
// port, and time to first token and between tokens of any engine that answers over HTTP/1 on a
// port.
//
// # Programs
//
// Load puts programs and maps under /sys/fs/bpf/cognitora (maps/, progs/, links/). They stay there
// when the process ends, however it ends, and count on: the next Load uses the same maps. Open
// reads them without changing anything. Clean removes them all. `bpftool map dump pinned
// /sys/fs/bpf/cognitora/maps/NAME` prints what Go reads; the comment of each map in the .bpf.c and
// .h files here says what it is.
//
// # Upgrade
//
// A tracepoint keeps a dispatcher that jumps to the program in a slot, a cgroup's link can be given
// another program: both change at one instant and no event is missed. A map is used again as long
// as its layout (type, names, places and sizes of fields, number of entries) is the same. Where it
// is not, what it has counted is copied, field by field of the same name, into a new one before the
// programs change. What connections count between the copy and the change is added afterwards, and
// none is lost (Linux 5.14; Missing says so where it could not be). Of all else, what is counted in
// that time is lost, for as long as Report.Window says, which is a few milliseconds; a run on a
// CPU, or a wait for one, is counted when it ends, and lost whole if that is then. Sockets that
// were open at a change of cgn_socks count as closed, and those of watched ports as opened anew
// with their next packet.
//
// # Rights
//
// Load needs CAP_BPF, CAP_PERFMON (tracepoints, reading kernel memory by its types) and
// CAP_NET_ADMIN (programs of sockets and packets), and a BPF file system to which it may write; no
// other capability, and not root. Process ids are those of the host: in a PID namespace, watch
// nothing. Where something is missing, Missing says what and why, and the rest works. New returns a
// reader of /proc, sock_diag and cgroup files where nothing does.
//
// # Privacy
//
// No payload is copied out of the kernel. Two bytes are looked at and not kept, those with which a
// request to a watched port may begin: the first that come on a connection, after an answer has
// begun, or after 100 Continue, when they are of a body. They are compared with those of the
// methods of HTTP/1, of HTTP/2 and TLS; everything else comes from packet headers, sizes and times.
//
// # Limits of tokens
//
// Only answers to POST are measured, and only such of at least three pieces: what is asked about an
// engine's health and metrics is in no figure. The first piece of a stream is taken for the head
// alone if it is at most 320 bytes and not 80 larger than a token; if it went out in less than half
// of a token's time and the gap after it is three times as large as the next; or if two and more
// earlier streams of the port, with the same size, were so. It is taken for a head with the first
// token if neither of the two times is so. In all other cases the time to the first token is not
// counted (Tokens.Unclear). So an engine that holds a large head back for longer than half a token,
// and then has the first token within three, is told wrongly until longer prompts have shown what
// its head is.
//
// Tokens of less than 80 bytes are counted nowhere. Where an engine sends several in each piece,
// what is measured are the gaps between its pieces. A piece of 4 KiB and more is no token. What the
// program had written when the segment before went out waits for the network: the gap before it is
// none.
package bpf
