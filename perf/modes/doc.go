// Package modes compares mode cost of package policy with the Rust crate dynamo-kv-router. Both get
// the same random situations. The program in main.rs answers with the costs that the crate logs and
// the worker that the crate picks.
//
// testdata/golden.jsonl holds answers of the crate, which the tests read without Rust. To compare
// with the crate itself, run make check-modes.
package modes
