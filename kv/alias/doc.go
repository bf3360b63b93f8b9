// Package alias says what objects stand for that engines' own caches name, and whose names follow
// from token ids: Source, Chunk and the note that the cache daemon keeps with an object.
//
// A chunk is some blocks of a prompt in a row with everything before them. A cache stores it under
// one key or several, its parts. The Scheme says whose keys they are. The packages lmcache,
// vllmtier and hicache beside this one each have the form of one scheme's keys and the rule of its
// names.
package alias
