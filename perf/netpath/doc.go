// Package netpath connects two network namespaces by a path with a given delay, loss and rate,
// without changes in the host's own network. The package uses netem, or user space on kernels
// without it. A Star connects several namespaces to a central one, and drops packets by a BPF
// program of its own. The package runs on Linux only, as root.
//
// All objects of a Path end with its process at the latest. Namespaces have no names, devices end
// with their file descriptors or namespaces, and programs started in a namespace are killed when
// the process ends.
package netpath
