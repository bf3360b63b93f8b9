// Package trust tests for minutes who gets in and what is counted, while everything that decides it
// changes: certificates and their CA, the file of keys, the keys in etcd, etcd itself, and Redis.
//
// The programs are real, each a process of its own: two routers, an agent with three simulated
// engines, redis-server and etcd. All wires between them are TLS with client certificates. Router a
// has its keys from a file and its engines from its configuration, router b has both from etcd.
//
// Each client knows the right answers to its requests. What clients saw is compared with the
// routers' access logs, with the engines' counts and with those in Redis.
//
//   - site_test.go starts the programs.
//   - clients_test.go asks, and judges each answer.
//   - wires_test.go replaces certificates and CAs, and restarts etcd.
//   - keys_test.go makes, rotates and revokes keys, and damages their file.
//   - redis_test.go stops, kills and empties Redis, and reads what it counts.
//   - stalls_test.go measures for how long the machine stands still, which excuses routers.
//   - books_test.go compares the counts.
//
// make check-trust runs it.
package trust
