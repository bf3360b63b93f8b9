// Package chunks counts the blocks of an unchanged LMCache, of vLLM's own object tier and of
// SGLang's HiCache in the daemon's index of blocks.
//
// LMCache stores a prompt in chunks under keys of its own (kv/lmcache). A key does not say which
// blocks of tokens its chunk has. Whoever knows the tokens tells the Table, in any order with the
// parts of the chunk: the objects of all its workers, layers and halves. A chunk that is told and
// whose parts are all here is an object of kv/residency, in a namespace that only chunks of its
// source have. It is in RAM if all parts are, and on SSD if all are on SSD, or all are somewhere
// and not all in RAM. When a part goes, the object goes.
//
// An object of vLLM's tier (kv/vllmtier) is a chunk with one part. Its name in KV events says
// neither model nor configuration. An engine with an access key of its own says both with its first
// request for an object (Asked), and Tell refuses what is told of the engine before that.
//
// A page of HiCache (kv/hicache) is a chunk with one part or two of each rank. The pages of a model
// that keeps more than pages do not count, from the first such object on. Once maxBeside models of
// a namespace of keys do, no pages of the namespace count. Other namespaces are as they were: of
// more than maxOrigins with such models the table forgets any one that has no told pages.
//
// Routers name a chunk by the digest of its last block. Parts turns that into the keys of its
// parts, so that another host can bring them. The keys of vLLM's tier and of HiCache
// do not follow from what is told.
//
// # What does not count
//
// A chunk counts for nothing if it is untold, if a part is missing, or if two tellers, or a teller
// and an earlier note, contradict each other about it. A contradiction lasts until all parts of the
// chunk have gone. Keys of an unknown form never count. Stats has the numbers by reason.
//
// # Restarts and other hosts
//
// What is told of a chunk becomes a note in the attribute of one of its parts, which goes to SSD
// and to other hosts with the part. The note comes back with the part's next change. A note that
// cannot be written is counted; the chunk then counts until the daemon's end.
//
// # Bounds
//
// The table has at most MaxParts parts; further ones are counted and do not count. Of the told
// chunks without parts it keeps the latest maxIdle. At most maxPending notes wait to be written.
// The table knows the addresses of at most maxUnnoted untold objects in RAM whose keys do not
// follow from what is told. A further one takes the place of any other. An object whose address is
// lost gets no note when it is told, unless it comes to RAM again, and does not count after a
// restart.
//
// # Cost
//
// A chunk takes 25 bytes (chunk.go), about 4.5 in the table that finds it by its name, and 8 for
// the name of each of its blocks. A part takes about 9 in the table that finds it by its address
// (hash.go). A chunk of LMCache's takes 8 for its name, and about 4.5 in the table that finds it by
// its last block (parts.go). A chunk with several blocks or parts, or with a name, has a record for
// these (arena.go). So a block of 16 tokens takes 13 bytes in chunks of 256 tokens with two parts,
// 33 with one part for each of 32 layers, 25 in pages of 64 tokens with two parts, and 40 as an
// object of its own (TestMemory). Nothing of this has pointers, so the garbage collector does not
// look at it. The address of an untold object takes about 80 bytes more, and those that are kept
// 5 MB at most.
//
// An entry knows 64 bits of the hash of a chunk's name, as a block has 64 bits of its digest, and
// 40 bits of the hash of a part's address. A confusion of addresses makes a chunk count for less
// than it should, and never for more.
package chunks
