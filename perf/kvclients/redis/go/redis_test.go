// Package redis tests go-redis against a RESP server at REDIS_HOST and REDIS_PORT. The package
// empties the server.
package redis

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func client(t *testing.T, protocol int) (*redis.Client, context.Context) {
	c := redis.NewClient(&redis.Options{Addr: net.JoinHostPort(os.Getenv("REDIS_HOST"), os.Getenv("REDIS_PORT")),
		Protocol: protocol, ReadTimeout: 30 * time.Second})
	t.Cleanup(func() { c.Close() })
	ctx := context.Background()
	if err := c.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	return c, ctx
}

func both(t *testing.T, test func(t *testing.T, c *redis.Client, ctx context.Context)) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			c, ctx := client(t, protocol)
			test(t, c, ctx)
		})
	}
}

func TestRoundTrips(t *testing.T) {
	big := make([]byte, 4<<20)
	_, _ = rand.Read(big)
	both(t, func(t *testing.T, c *redis.Client, ctx context.Context) {
		for _, v := range [][]byte{{}, []byte("a\r\nb\x00\xff"), big} {
			if err := c.Set(ctx, "k", v, 0).Err(); err != nil {
				t.Fatal(err)
			}
			if got, err := c.Get(ctx, "k").Bytes(); err != nil || !bytes.Equal(got, v) {
				t.Fatalf("%d bytes come back of %d, %v", len(got), len(v), err)
			}
		}
		if err := c.Get(ctx, "nothing").Err(); !errors.Is(err, redis.Nil) {
			t.Error(err)
		}
		all, err := c.MGet(ctx, "k", "nothing").Result()
		if err != nil || all[0] != string(big) || all[1] != nil {
			t.Error("MGET", err)
		}
	})
}

func TestConditionsAndExpiry(t *testing.T) {
	both(t, func(t *testing.T, c *redis.Client, ctx context.Context) {
		if ok, err := c.SetNX(ctx, "k", 1, time.Hour).Result(); !ok || err != nil {
			t.Error(ok, err)
		}
		if ok, err := c.SetNX(ctx, "k", 1, time.Hour).Result(); ok || err != nil {
			t.Error(ok, err)
		}
		if d, err := c.TTL(ctx, "k").Result(); d <= 0 || d > time.Hour || err != nil {
			t.Error(d, err)
		}
		if n, err := c.Del(ctx, "k").Result(); n != 1 || err != nil {
			t.Error(n, err)
		}
		if n, err := c.Exists(ctx, "k").Result(); n != 0 || err != nil {
			t.Error(n, err)
		}
	})
}

func TestPipelineAndScan(t *testing.T) {
	both(t, func(t *testing.T, c *redis.Client, ctx context.Context) {
		if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range 300 {
				p.Set(ctx, fmt.Sprintf("key:%d", i), i, 0)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for it := c.Scan(ctx, 0, "key:*", 20).Iterator(); it.Next(ctx); {
			found[it.Val()] = true
		}
		if len(found) != 300 {
			t.Errorf("%d keys", len(found))
		}
		if err := c.LPush(ctx, "k", "v").Err(); err == nil || !strings.HasPrefix(err.Error(), "ERR unknown command") {
			t.Error(err)
		}
	})
}
