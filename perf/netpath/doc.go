// Package netpath connects two network namespaces by a path with a given delay, loss and rate,
// without changes in the host's own network. The package carries the packets in user space. Its
// tests can use the kernel's netem too. A Star connects several namespaces to a central namespace,
// and drops packets by its own BPF program. The package runs on Linux only, as root.
//
// All objects of a Path end with its process at the latest. Namespaces have no names, devices end
// with their file descriptors or namespaces, and programs started in a namespace are killed when
// the process ends.
package netpath
