// Package kvabuse tests that the program cgn-kvcached keeps its promises when it is killed and when
// it is mistreated.
//
// TestKill kills the program with SIGKILL repeatedly, under mixed load on all of its local
// protocols. TestKill compares each later answer with what was acknowledged before; model_test.go
// has the exact rules. The other tests use thousands of idle clients, clients that stop in the
// middle or never read, disks that are full, read-only or broken, and garbage on every port. After
// a kill, the kernel still has the writes of the process. So these tests cannot show that durable
// data are synced. The tests of kvcached/ssd show that durable data are synced.
//
// make check-kill and make check-abuse run the tests. The tests are skipped without KVABUSE, the
// path of the program.
package kvabuse
