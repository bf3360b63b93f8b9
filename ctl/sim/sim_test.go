package sim

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/cognitora/dataplane/ctl/ctltest"
)

// startSimCommand runs `sim` until the test ends and returns its addresses.
func startSimCommand(t *testing.T, args ...string) (at simAt) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		root := ctltest.Root(Command, in, io.Discard, func(string) string { return "" })
		root.SetArgs(append([]string{"sim", "-o", "json", "--listen", "127.0.0.1:0", "--speed", "1000"}, args...))
		err := root.ExecuteContext(ctx)
		_ = in.CloseWithError(io.EOF)
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if err := json.NewDecoder(out).Decode(&at); err != nil {
		t.Fatal(err)
	}
	return at
}

// pastBatches requests all past batches. pastBatches returns their sequence numbers, and the first
// event of the last batch.
func pastBatches(t *testing.T, endpoint string) (seqs []uint64, event any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	d := zmq4.NewDealer(ctx)
	defer d.Close()
	if err := d.Dial(endpoint); err != nil {
		t.Fatal(err)
	}
	if err := d.SendMulti(zmq4.NewMsgFrom(nil, make([]byte, 8))); err != nil {
		t.Fatal(err)
	}
	for {
		msg, err := d.Recv()
		if err != nil || len(msg.Frames) != 4 {
			t.Fatalf("%v, frames %q", err, msg.Frames)
		}
		seq := binary.BigEndian.Uint64(msg.Frames[2])
		if int64(seq) == -1 { // the mark of the end
			return seqs, event
		}
		if topic := string(msg.Frames[1]); topic != "kv" {
			t.Errorf("topic %q", topic)
		}
		var batch []any
		if err := msgpack.Unmarshal(msg.Frames[3], &batch); err != nil {
			t.Fatal(err)
		}
		seqs, event = append(seqs, seq), batch[1].([]any)[0]
	}
}

func TestSimPublishesKVEventsInBothForms(t *testing.T) {
	for form, kind := range map[string]func(event any) any{
		"map":   func(event any) any { return event.(map[string]any)["type"] },
		"array": func(event any) any { return event.([]any)[0] },
	} {
		t.Run(form, func(t *testing.T) {
			at := startSimCommand(t, "--kv-events", "tcp://127.0.0.1:0", "--kv-events-form", form, "--kv-events-topic",
				"kv",
				"--kv-replay", "tcp://127.0.0.1:0", "--kv-replay-batches", "2")
			if at.KVEvents == "" || at.KVReplay == "" {
				t.Fatalf("%+v", at)
			}
			body := `{"model":"sim","prompt":"` + strings.Repeat("abcd", 40) + `","max_tokens":30}`
			resp, err := http.Post(at.URL+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			// Two blocks of the prompt come in one batch, then two blocks of the answer in one
			// batch each. Two batches are kept.
			seqs, event := pastBatches(t, at.KVReplay)
			if len(seqs) != 2 || seqs[0] != 1 || seqs[1] != 2 || kind(event) != "BlockStored" {
				t.Errorf("batches %v, event %v", seqs, event)
			}
		})
	}
}

func TestSimNamesTheFlagThatCannotWork(t *testing.T) {
	for args, want := range map[string]string{
		"--max-seqs 0":      "--max-seqs 0: must be 1 or more",
		"--prefill-rate -1": "--prefill-rate -1: must be 0.000001 to 1000000000",
		"--speed 0":         "--speed 0: must be 0.000001 to 1000000000",
		"--decode-step -1s": "--decode-step -1s: must be 0s or more",

		"--decode-per-block -1s":                           "--decode-per-block -1s: must be 0s or more",
		"--prefill-doubles-at -1":                          "--prefill-doubles-at -1: must be 0 or more",
		"--slow 90s-30s=5":                                 "must be FROM-TO=FACTOR",
		"--slow 30s-90s":                                   "must be FROM-TO=FACTOR",
		"--step-cpu -1s":                                   "--step-cpu -1s: must be 0s or more",
		"--kv-events tcp://h:1 --kv-events-form list":      `--kv-events-form "list": must be map or array`,
		"--kv-events tcp://h:1 --kv-events-hashes x":       "must be int or bytes",
		"--kv-events-form array":                           "--kv-events-form needs --kv-events",
		"--kv-replay tcp://h:1":                            "--kv-replay needs --kv-events",
		"--kv-events tcp://h:1 --kv-replay-batches 5":      "--kv-replay-batches needs --kv-replay",
		"--kv-events tcp://127.0.0.1 --listen 127.0.0.1:0": "127.0.0.1",

		"--connector x":                     `--connector "x": must be one of nixl, mooncake`,
		"--connector nixl --role x":         `--role "x": must be one of prefill, decode, both`,
		"--connector nixl --load-failure x": `--load-failure "x": must be one of fail`,
		"--role prefill":                    "--role needs --connector",
		"--side-channel 127.0.0.1:1":        "--side-channel needs --connector",
		"--connector nixl --block-lease 0":  "--block-lease",
		"--quality 2":                       "--quality 2: must be 0 to 1",
		"--connector nixl --side-channel x --listen 127.0.0.1:0": "SideChannel",
	} {
		if _, err := ctl(t, nil, append([]string{"sim"}, strings.Fields(args)...)...); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func TestSimNamesWhoHasItsPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = ctl(t, nil, "sim", "--listen", l.Addr().String())
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("in use by sim.test (process %d)", os.Getpid())) {
		t.Error(err)
	}
}

// TestSimHasAdapters: the flags give the engine its adapters, and the endpoints to change them.
func TestSimHasAdapters(t *testing.T) {
	path := t.TempDir()
	at := startSimCommand(t, "--lora-modules", "sql=/sql,chat=/chat", "--max-loras", "2", "--runtime-lora")
	post := func(path, body string) int {
		resp, err := http.Post(at.URL+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	for body, want := range map[string]int{`"sql"`: 200, `"chat"`: 200, `"new"`: 404} {
		if got := post("/v1/completions", `{"prompt":"x","model":`+body+`}`); got != want {
			t.Errorf("%s: %d", body, got)
		}
	}
	if got := post("/v1/load_lora_adapter", fmt.Sprintf(`{"lora_name":"new","lora_path":%q}`, path)); got != 200 {
		t.Errorf("loading: %d", got)
	}
	if got := post("/v1/completions", `{"prompt":"x","model":"new"}`); got != 200 {
		t.Errorf("the new one: %d", got)
	}
}

// TestSimsHandOver: two simulated engines hand the blocks of a prompt over, as the flags say.
func TestSimsHandOver(t *testing.T) {
	p := startSimCommand(t, "--connector", "sglang", "--role", "prefill", "--id", "p", "--seed", "3")
	d := startSimCommand(t, "--connector", "sglang", "--role", "decode", "--id", "d", "--seed", "3")
	host, port, _ := strings.Cut(p.SideChannel, ":")
	body := fmt.Sprintf(`{"prompt":"abcdefgh","max_tokens":5,"bootstrap_host":%q,"bootstrap_port":%s,"bootstrap_room":7}`,
		host, port)
	var legs sync.WaitGroup
	for _, at := range []simAt{p, d} {
		legs.Go(func() {
			resp, err := http.Post(at.URL+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("%s: %s", at.URL, resp.Status)
			}
		})
	}
	legs.Wait()
	resp, err := http.Get(d.URL + "/sim/stats")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var stats struct {
		ID       string `json:"id"`
		Received int64  `json:"received_tokens"`
		Computed int64  `json:"computed_tokens"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&stats); err != nil || stats.ID != "d" || stats.Received != 2 ||
		stats.Computed != 0 {
		t.Errorf("%+v, %v", stats, err)
	}
}
