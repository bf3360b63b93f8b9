//go:build linux

package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/client"
	"github.com/cognitora/dataplane/kvcached/lease"
	"github.com/cognitora/dataplane/kvcached/store"
)

// exampleDaemon starts a stand-in for cgn-kvcached with --sock.
func exampleDaemon() (socket string, stop func()) {
	dir, err := os.MkdirTemp("", "lease")
	if err != nil {
		log.Fatal(err)
	}
	socket = filepath.Join(dir, "kv-lease.sock")
	st, err := store.Open(context.Background(), store.Options{RAM: 16 << 20})
	if err != nil {
		log.Fatal(err)
	}
	server, err := lease.New(st, lease.Options{})
	if err != nil {
		log.Fatal(err)
	}
	l, err := listen.OpenUnix(socket, 0o660, -1)
	if err != nil {
		log.Fatal(err)
	}
	go server.Serve(l)
	return socket, func() {
		server.Close()
		st.Close()
		os.RemoveAll(dir)
	}
}

// exampleAddr returns the address and the namespace of a block. The address is made from the
// block's tokens and from everything else that makes its bytes differ.
func exampleAddr() (block.Addr, string) {
	model := block.Namespace{Model: "meta-llama/Llama-3.1-8B", Revision: "0e9e39f", DType: "bf16", Layout: "vllm.NHD",
		Tokens: 16, TP: 1, PP: 1}
	var tokens [block.Tokens]uint32
	digest := block.Next(block.Seed(model.Model, "", ""), &tokens)
	return block.Addr{Digest: digest, Model: model.ID(), Layer: block.LayerAll}, model.String()
}

// exampleClient returns a client of an exampleDaemon. The daemon holds payload in the example
// block, if payload is not empty.
func exampleClient(payload string) (c *client.Client, addr block.Addr, namespace string, stop func()) {
	socket, stopDaemon := exampleDaemon()
	addr, namespace = exampleAddr()
	c, err := client.Options{Name: "example", Sockets: 2}.Dial(context.Background(), socket)
	if err != nil {
		log.Fatal(err)
	}
	if payload != "" {
		if _, err := c.Put(context.Background(), client.Item{Addr: addr, Namespace: namespace},
			[]byte(payload)); err != nil {
			log.Fatal(err)
		}
	}
	return c, addr, namespace, func() {
		c.Close()
		stopDaemon()
	}
}

func Example() {
	socket, stop := exampleDaemon()
	defer stop()
	addr, namespace := exampleAddr()
	ctx := context.Background()

	c, err := client.Dial(ctx, socket)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	if _, err := c.Get(ctx, addr); errors.Is(err, client.ErrMiss) {
		info, err := c.Put(ctx, client.Item{Addr: addr, Namespace: namespace}, []byte("keys and values"))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("put", info.Length, "bytes")
	}

	view, err := c.Get(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	payload := string(view.Bytes())
	if err := view.Close(); err != nil {
		log.Fatal(err) // client.ErrLeaseExpired: the bytes may be another block's
	}
	fmt.Println("got", payload)
	// Output:
	// put 15 bytes
	// got keys and values
}

// Read closes the lease before its result can be used.
func ExampleClient_Read() {
	c, addr, _, stop := exampleClient("keys and values")
	defer stop()
	device := make([]byte, 64) // for example a GPU's memory
	n := 0
	err := c.Read(context.Background(), addr, func(payload []byte) error {
		n = copy(device, payload)
		return nil
	})
	if err != nil {
		n = 0 // the bytes on the device do not count
	}
	fmt.Printf("%s\n", device[:n])
	// Output: keys and values
}

// ExampleClient_PutFrom builds a block in the daemon's staging memory, without a buffer of the
// program.
func ExampleClient_PutFrom() {
	c, addr, namespace, stop := exampleClient("")
	defer stop()
	info, err := c.PutFrom(context.Background(), client.Item{Addr: addr, Namespace: namespace}, 1<<20,
		func(b []byte) error {
			for i := range b {
				b[i] = 7
			}
			return nil
		})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bytes, checksum %08x\n", info.Length, info.CRC)
	// Output: 1048576 bytes, checksum 7d17286a
}

// ExampleClient_GetMany gets a prompt's cached blocks in one round trip.
func ExampleClient_GetMany() {
	c, first, _, stop := exampleClient("the first 16 tokens")
	defer stop()
	var more [block.Tokens]uint32
	second := block.Addr{Digest: block.Next(first.Digest, &more), Model: first.Model, Layer: first.Layer}
	views, err := c.GetMany(context.Background(), []block.Addr{first, second})
	if err != nil {
		log.Fatal(err)
	}
	for _, view := range views {
		if view == nil {
			fmt.Println("a miss")
			continue
		}
		text := string(view.Bytes())
		if err := view.Close(); err == nil {
			fmt.Println(text)
		}
	}
	// Output:
	// the first 16 tokens
	// a miss
}
