package bpf

// The objects are for little-endian machines, amd64 and arm64 among them; nothing here is built for
// others.
//
//go:generate go tool bpf2go -target bpfel -strip llvm-strip -type cpu -type group -type settings -type drops -type histogram sched sched.bpf.c -- -O2 -Wall -Werror -mcpu=v3 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -target bpfel -strip llvm-strip -type port_key -type peer_key -type sockets -type tokens -type watch -type event -type event_kind sockets sockets.bpf.c -- -O2 -Wall -Werror -mcpu=v3 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -target bpfel -strip llvm-strip -no-global-types tokens tokens.bpf.c -- -O2 -Wall -Werror -mcpu=v3 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go tool bpf2go -target bpfel -strip llvm-strip -no-global-types dispatch dispatch.bpf.c -- -O2 -Wall -Werror -mcpu=v3 -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
