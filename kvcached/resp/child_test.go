package resp

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	_ "net/http/pprof"
	"os"

	"github.com/cognitora/dataplane/kvcached/store"
)

// childVariable holds an address and makes the test binary a server there, for measurements and for
// clients in other languages. The server prints where it listens, and ends with its input.
const childVariable = "CGN_RESP_CHILD"

func childServer(addr string) {
	if err := runChild(addr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runChild(addr string) error {
	st, err := store.Open(context.Background(), store.Options{RAM: 768 << 20})
	if err != nil {
		return err
	}
	defer st.Close()
	clear(st.Arena().Slice(0, 768<<20)) // no measured write is the first to use a page
	s, err := New(Options{Store: lone{st}})
	if err != nil {
		return err
	}
	if profile := os.Getenv("CGN_RESP_PPROF"); profile != "" {
		go func() { _ = http.ListenAndServe(profile, nil) }()
	}
	network := "tcp"
	if addr[0] == '/' {
		network = "unix"
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = l.Close()
	}()
	err = s.Serve(l)
	_ = s.Close() // waits for connections, which hold blocks of the store
	return err
}
