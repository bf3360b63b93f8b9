//go:build !linux

package memo

// memory returns zeroed words, on this system in Go's heap.
func memory(words int, _ *Table) []uint64 { return make([]uint64, words) }
