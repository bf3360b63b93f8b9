// Package kvabuse holds cgn-kvcached, as a program, to what it promises when it is killed and when
// it is mistreated.
//
// TestKill kills it with SIGKILL under mixed load on all of its local protocols, again and again,
// and holds each answer of its successors to what was acknowledged before (model_test.go says what
// exactly). The other tests are clients that idle by the thousand, stop in the middle or never
// read, disks that are full, read-only or broken, and garbage on every port. A killed process
// leaves what it wrote to the kernel: that durable means synced is held by the tests of
// kvcached/ssd.
//
// make check-kill and make check-abuse run them; without KVABUSE, the path of the program, they are
// skipped.
package kvabuse
