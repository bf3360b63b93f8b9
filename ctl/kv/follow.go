package kv

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/screen"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// again is the time between attempts to reach a daemon that has ended a stream.
const again = time.Second

func newFollow(k *commands) *cobra.Command {
	var model string
	var all bool
	var length time.Duration
	c := &cobra.Command{
		Use: "follow", Short: "Show blocks as they come and go", Args: cli.NoArguments,
		Long: "Prints a line for each run of blocks that came to a tier (+) or left it (-), in the cache or in an " +
			"engine that reports to it.\n" +
			"TOKENS is the length of the run, FROM the number of its first token in the prompt, - if that is not " +
			"known. BLOCK is the\n" +
			"beginning of the last block's digest, as in kv ls. Without --all these are the blocks that can count " +
			"in routing.\n" +
			"A terminal gets up to " + fmt.Sprint(linesPerSecond) + " lines a second; further changes of a second " +
			"are summed. A pipe gets every line.\n" +
			"A gap, after which nobody can tell what came and went, is printed with the number of blocks that are " +
			"there now.",
		Example: "  cgn-ctl kv follow\n  cgn-ctl kv follow --model Qwen/Qwen3-8B --for 10s -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			if length < 0 || length == 0 && c.Flags().Changed("for") {
				return cli.Misused(fmt.Errorf("--for %v: must be above 0", length))
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if length > 0 { // the daemon shall not know of the end, or it would answer with an error
				defer time.AfterFunc(length, stop).Stop()
			}
			p := &printer{out: k.Out, json: k.Output == "json"}
			p.sums = !p.json && screen.IsTerminal(k.Out)
			return k.follow(ctx, &pb.WatchRequest{All: all}, newSight(model), p)
		},
	}
	c.Flags().StringVar(&model, "model", "", "blocks of this model only")
	c.Flags().BoolVar(&all, "all", false, "every layer and every rank, not only what can count in routing")
	c.Flags().DurationVar(&length, "for", 0, "end after this time; without it at Ctrl-C")
	return c
}

// follow prints changes until ctx ends. It waits for a daemon that has answered before and has gone
// since.
func (k *commands) follow(ctx context.Context, r *pb.WatchRequest, s *sight, p *printer) error {
	p.head()
	for {
		var code codes.Code
		err := k.Call(ctx, func(ctx context.Context, client pb.KvClient) error {
			err := watch(ctx, client, r, s, p)
			code = status.Code(err)
			return err
		})
		switch {
		case ctx.Err() != nil:
			return p.rest(time.Now())
		case err == nil || !s.synced || code != codes.Unavailable:
			return err
		case !s.lost:
			s.lost = true
			gap := happening{Event: gapEvent, Why: "the daemon has ended the stream"}
			if err := p.print(time.Now(), &gap); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

// watch prints one stream.
func watch(ctx context.Context, client pb.KvClient, r *pb.WatchRequest, s *sight, p *printer) error {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := client.Watch(ctx, r)
	if err != nil {
		cancel()
		return err
	}
	messages, ended := make(chan *pb.WatchResponse), make(chan error, 1)
	go func() {
		defer close(messages)
		for {
			m, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case messages <- m:
			case <-ctx.Done():
				ended <- ctx.Err()
				return
			}
		}
	}()
	defer func() {
		cancel()
		for range messages { // waits until the goroutine has ended
		}
	}()
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	for {
		select {
		case now := <-ticks.C:
			if err := p.rest(now); err != nil {
				return err
			}
		case m, more := <-messages:
			if !more {
				return <-ended
			}
			happenings, err := s.take(m)
			if err != nil {
				return err
			}
			for i := range happenings {
				if err := p.print(time.Now(), &happenings[i]); err != nil {
					return err
				}
			}
		}
	}
}
