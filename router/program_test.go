package router_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// programProcess is one of four programs:
//   - an engine, on the given address if any, that prints its address
//   - a program that only wakes now and then
//   - a publisher of too many KV events
//   - a router with sockets in a folder and the given backends, with or without router.watch_nodes.
//     TEST_EVENTS is the router's router.kernel_events and TEST_MODE its router.mode (round_robin).
//     The router drops its rights if TEST_USER is the id of a user and a group.
func programProcess(what string, args []string) {
	err := errors.New(what)
	switch what {
	case "engine":
		var e *engine.Engine
		c := engine.Config{DecodeStep: 2 * time.Millisecond}
		if len(args) > 0 {
			c.Listen = args[0]
		}
		if e, err = engine.New(c); err == nil {
			fmt.Println(e.URL())
			select {}
		}
	case "flood":
		err = flood()
	case "ticker":
		for range time.Tick(70 * time.Millisecond) { // as often as an idle agent looks
		}
	case "router":
		var c router.Config
		if err = errors.Join(become(os.Getenv("TEST_USER")), config.Defaults(&c)); err == nil {
			c.Router.KernelEvents = os.Getenv("TEST_EVENTS")
			c.Router.Listen = "unix://" + filepath.Join(args[0], "api")
			c.Router.Admin = "unix://" + filepath.Join(args[0], "admin")
			c.Router.Disagg.ColocateBelow = 64
			c.Router.Mode = cmp.Or(os.Getenv("TEST_MODE"), "round_robin")
			c.Router.WatchNodes, c.Router.Backends = args[1] == "true", args[2:]
			if strings.Contains(strings.Join(args, " "), "kv-events=") {
				c.Models = []router.ModelConfig{{Name: "sim", Tokenizer: "none"}}
			}
			c.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
			var r *router.Router
			if r, err = router.New(c); err == nil {
				err = r.Run(context.Background(), context.Background())
			}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// become gives up all rights. An empty id keeps the rights.
func become(id string) error {
	if id == "" {
		return nil
	}
	n, err := strconv.Atoi(id)
	return errors.Join(err, syscall.Setgroups(nil), syscall.Setgid(n), syscall.Setuid(n))
}

// program runs this binary as another program. The program is killed at the end of the test.
func program(
	t *testing.T, what string, start func(*exec.Cmd) error, log *logged, args ...string,
) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "TEST_PROGRAM="+what)
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = start(cmd)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill() // fails if the test has done so
		cmd.Wait()
	})
	return cmd, bufio.NewReader(out)
}
