// Package netpath joins two network namespaces by a path of known delay, loss and rate, without
// traces in the host's own network: through netem, or in user space for kernels without it; a Star
// joins several to one, and loses packets by a program of its own. Linux only, and for root.
//
// Everything of a Path lives as long as its process at most: namespaces have no names, devices go
// with their file descriptors or namespaces, and programs started in a namespace are killed when
// the process ends.
package netpath
