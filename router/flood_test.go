package router_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// flood is a publisher of KV events. flood sends as many as its reader takes, between two bytes on
// its standard input. Then flood prints the number of batches since the beginning.
func flood() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	if err := greet(conn); err != nil {
		return err
	}
	seq, paused := uint64(0), sync.Mutex{}
	paused.Lock()
	go func() {
		b := make([]byte, 1)
		for {
			if _, err := os.Stdin.Read(b); err != nil {
				os.Exit(0)
			}
			paused.Unlock()
			if _, err := os.Stdin.Read(b); err != nil {
				os.Exit(0)
			}
			paused.Lock()
			fmt.Println(seq)
		}
	}()
	batches := floods()
	for {
		paused.Lock()
		payload := batches[seq%uint64(len(batches))]
		m := append(binary.BigEndian.AppendUint64([]byte{1, 0, 1, 8}, seq), 2)
		m = append(binary.BigEndian.AppendUint64(m, uint64(len(payload))), payload...)
		_, err := conn.Write(m)
		seq++
		paused.Unlock()
		if err != nil {
			return err
		}
	}
}

// greet makes the handshake of ZMTP 3.0 as a PUB socket that reads no subscriptions.
func greet(conn net.Conn) error {
	greeting := [64]byte{0: 0xff, 9: 0x7f, 10: 3, 12: 'N', 13: 'U', 14: 'L', 15: 'L'}
	if _, err := conn.Write(greeting[:]); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, greeting[:]); err != nil {
		return err
	}
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
	_, err := conn.Write(append([]byte{4, byte(len(ready))}, ready...))
	go io.Copy(io.Discard, conn)
	return err
}

// floods returns batches that each store a prompt of 64 blocks and remove the prompt stored 128
// batches before.
func floods() (batches [][]byte) {
	const prompts, blocks = 256, 64
	hashes := func(p int) (all []uint64) {
		for i := range uint64(blocks) {
			all = append(all, 1<<63|uint64(p)<<32|i)
		}
		return all
	}
	for p := range prompts {
		var tokens []uint32
		for i := range uint32(16 * blocks) {
			tokens = append(tokens, (uint32(p)<<16+i)*2654435761%128_000)
		}
		b, err := msgpack.Marshal([]any{1.5, []any{
			map[string]any{"type": "BlockStored", "block_hashes": hashes(p), "parent_block_hash": nil,
				"token_ids": tokens, "block_size": 16, "lora_id": nil, "medium": "GPU"},
			map[string]any{"type": "BlockRemoved", "block_hashes": hashes((p + prompts/2) % prompts), "medium": "GPU"},
		}, 0})
		if err != nil {
			panic(err)
		}
		batches = append(batches, b)
	}
	return batches
}
