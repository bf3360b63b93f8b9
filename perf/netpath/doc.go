// Package netpath joins two network namespaces by a path of known delay, loss and rate, in user space: for kernels
// without netem, and without traces in the host's own network. Linux only, and for root.
//
// Everything of a Path lives as long as its process at most: namespaces have no names, TUN devices go with their
// file descriptors, and programs started in a namespace are killed when the process ends.
package netpath
