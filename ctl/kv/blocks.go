package kv

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/kv/block"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// putPiece is the size of one message's payload.
const putPiece = 512 << 10

// maxPayload is the size of the longest block.
const maxPayload = 64 << 20

func newGet(k *commands) *cobra.Command {
	var f blockFlags
	var file string
	c := &cobra.Command{
		Use: "get BLOCK", Short: "Write a block's bytes to a file or standard output", Args: cli.OneArgument("BLOCK"),
		Long: "BLOCK is cgn:NAMESPACE:LAYER:DIGEST, or the key by which a client of RESP or S3 knows it, in " +
			"--namespace. This counts as a use.\n\n" +
			"What this host does not have is asked of the fleet that it is in, and is kept here from then on. A host " +
			"that does not answer\n" +
			"within [fleet] locate_timeout, or that the fleet has not heard of yet, has nothing. kv ls and kv stats " +
			"tell of this host alone.",
		Example: "  cgn-ctl kv get greeting\n  cgn-ctl kv get key --namespace 'key1;s3.bucket;' --file block.bin",
		RunE: func(c *cobra.Command, args []string) error {
			namespace, a, err := f.find(args[0])
			if err != nil {
				return err
			}
			var payload []byte
			err = k.Call(c.Context(), func(ctx context.Context, client pb.KvClient) (err error) {
				payload, err = getBlock(ctx, client, namespace, a)
				return err
			})
			if err != nil {
				return f.missing(err, args[0])
			}
			if file == "" {
				_, err = k.Out.Write(payload)
				return err
			}
			return os.WriteFile(file, payload, 0o600)
		},
	}
	f.add(c)
	c.Flags().StringVar(&file, "file", "", "file to write instead of standard output")
	return c
}

// getBlock reads a block and checks its checksum.
func getBlock(ctx context.Context, client pb.KvClient, namespace string, a block.Addr) ([]byte, error) {
	stream, err := client.Get(ctx, &pb.GetRequest{Namespace: namespace, Layer: a.Layer, Digest: a.Digest[:]})
	if err != nil {
		return nil, err
	}
	var header *pb.BlockHeader
	var payload []byte
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if m.Header != nil {
			header = m.Header
		}
		if payload = append(payload, m.Data...); len(payload) > maxPayload {
			return nil, fmt.Errorf("the daemon sends more than %d bytes", maxPayload)
		}
	}
	if header == nil || int(header.Length) != len(payload) || block.Sum(payload) != header.Crc32C {
		return nil, errors.New("what the daemon has sent has not its own checksum")
	}
	return payload, nil
}

func newPut(k *commands) *cobra.Command {
	var durable bool
	c := &cobra.Command{
		Use: "put BLOCK FILE", Short: "Store a file's bytes as a block", Args: cli.Arguments("BLOCK", "FILE"),
		Long: "BLOCK is cgn:NAMESPACE:LAYER:DIGEST[:PARENT:NAMES]. FILE - is standard input. What is there under " +
			"that address is replaced.",
		Example: "  cgn-ctl kv put 'cgn:kv1;m;r;bf16;l;16;1.0;1.0;:4294967295:'$(b3sum --no-names block.bin) block.bin",
		RunE: func(c *cobra.Command, args []string) error {
			if !block.IsAddress([]byte(args[0])) {
				return cli.Misused(cli.WithHint(fmt.Errorf("%q is not cgn:NAMESPACE:LAYER:DIGEST", args[0]),
					"keys of your own are stored through the cache's RESP or S3 port, such as with redis-cli SET"))
			}
			namespace, a, tail, err := block.ParseText([]byte(args[0]))
			if err != nil {
				return cli.Misused(err)
			}
			payload, err := cli.ReadInput(c, args[1], maxPayload)
			if err != nil {
				return err
			}
			return k.Call(c.Context(), func(ctx context.Context, client pb.KvClient) error {
				r, err := putBlock(ctx, client, &pb.PutHeader{Durable: durable, CheckCrc: true, Block: &pb.BlockHeader{
					Namespace: namespace, Layer: a.Layer, Digest: a.Digest[:], Parent: parentOf(tail),
					Length: uint32(len(payload)), Crc32C: block.Sum(payload), Attr: block.AppendNames(nil, tail.Names),
				}}, payload)
				if err != nil {
					return err
				}
				done := listedBlock{Namespace: namespace, Layer: a.Layer, Digest: hex.EncodeToString(a.Digest[:]),
					Bytes: uint32(len(payload)), Tiers: tierNames(r.Tiers)}
				return k.Show(done, func(t *cli.Table) {
					t.Line(fmt.Sprintf("stored %d bytes in %s", len(payload), done.Tiers))
				})
			})
		},
	}
	c.Flags().BoolVar(&durable, "durable", false, "wait until it is on SSD for certain")
	return c
}

// parentOf returns the parent of a tail for a message; nil: none.
func parentOf(tail block.Tail) []byte {
	if tail.Parent == (block.Digest{}) {
		return nil
	}
	return tail.Parent[:]
}

func putBlock(ctx context.Context, client pb.KvClient, h *pb.PutHeader, payload []byte) (*pb.PutResponse, error) {
	stream, err := client.Put(ctx)
	if err == nil {
		err = stream.Send(&pb.PutRequest{Header: h})
	}
	for err == nil && len(payload) > 0 {
		n := min(len(payload), putPiece)
		err = stream.Send(&pb.PutRequest{Data: payload[:n]})
		payload = payload[n:]
	}
	if err != nil && !errors.Is(err, io.EOF) { // after EOF the answer has the reason
		return nil, err
	}
	return stream.CloseAndRecv()
}

// removed is the result of kv rm.
type removed struct {
	Removed uint64        `json:"removed"`
	Hosts   []removedHost `json:"hosts,omitempty"` // of a purge in a fleet
	absent  string        // namespace of keys that were not found; empty: all were
}

type removedHost struct {
	Host    string `json:"host"`
	Removed uint64 `json:"removed"`
	Error   string `json:"error,omitempty"`
}

func (r *removed) write(t *cli.Table) {
	if len(r.Hosts) > 0 {
		t.Row("HOST", "REMOVED", "ERROR")
	}
	for _, h := range r.Hosts {
		t.Row(h.Host, h.Removed, cell.Dash(h.Error))
	}
	t.Line(fmt.Sprintf("%d removed", r.Removed))
	if r.absent != "" {
		t.Line("not all keys are in namespace " + r.absent + ": " + otherNamespace)
	}
}

func newRemove(k *commands) *cobra.Command {
	var what pb.PurgeRequest
	c := &cobra.Command{
		Use: "rm [BLOCK ...]", Short: "Remove blocks from all tiers",
		Long: "Removes the blocks that are named, as kv get takes them, in --namespace, or else every block of a " +
			"--namespace, --model, or --tenant\n" +
			"(of several: what is all of them), or of --all. In a fleet they are removed from all hosts;\n" +
			"a host that has not confirmed it is named, and makes this fail. What is on SSD is removed durably " +
			"before this ends.",
		Example: "  cgn-ctl kv rm greeting\n  cgn-ctl kv rm --model meta-llama/Llama-3.1-8B\n  cgn-ctl kv rm " +
			"--tenant acme",
		RunE: func(c *cobra.Command, args []string) error {
			if err := cmp.Or(oneKind(&what, args), checkNamespace(what.Namespace)); err != nil {
				return err
			}
			return k.Call(c.Context(), func(ctx context.Context, client pb.KvClient) error {
				done, err := removeBlocks(ctx, client, &what, args)
				if err != nil && len(done.Hosts) == 0 {
					return err
				}
				if shown := k.Show(done, done.write); err == nil {
					err = shown
				}
				return err
			})
		},
	}
	fl := c.Flags()
	fl.StringVar(&what.Namespace, "namespace", "",
		"this namespace, in its canonical text; with blocks that are keys of clients, where they are ("+respNamespace+
			" unless given)")
	fl.StringVar(&what.Model, "model", "", "every namespace of this model, and keys that carry its name")
	fl.StringVar(&what.Tenant, "tenant", "", "every namespace of this tenant")
	fl.BoolVar(&what.Everything, "all", false, "everything in the cache")
	return c
}

// oneKind returns an error unless either blocks, filters or everything is named for removal.
func oneKind(what *pb.PurgeRequest, blocks []string) error {
	some := what.Namespace != "" || what.Model != "" || what.Tenant != ""
	var err error
	switch {
	case len(blocks) > 0 && (what.Model != "" || what.Tenant != "" || what.Everything):
		err = errors.New("blocks and --model, --tenant or --all: give one of them")
	case what.Everything && some:
		err = errors.New("--all and --namespace, --model or --tenant: give one of them")
	case len(blocks) == 0 && !some && !what.Everything:
		err = cli.WithHint(errors.New("nothing is named that should be removed"),
			"name blocks, or give --namespace, --model, --tenant or --all")
	}
	return cli.Misused(err)
}

func removeBlocks(ctx context.Context, client pb.KvClient, what *pb.PurgeRequest, names []string) (removed, error) {
	if len(names) == 0 {
		r, err := client.Purge(ctx, what)
		for _, d := range status.Convert(err).Details() {
			if partly, ok := d.(*pb.PurgeResponse); ok {
				r = partly
			}
		}
		done := removed{Removed: r.GetBlocks()}
		for _, h := range r.GetHosts() {
			done.Hosts = append(done.Hosts, removedHost{h.Host, h.Blocks, h.Error})
		}
		return done, err
	}
	f := blockFlags{what.Namespace}
	if f.namespace == "" {
		f.namespace = respNamespace
	}
	var done removed
	for _, name := range names {
		namespace, a, err := f.find(name)
		if err != nil {
			return done, err
		}
		r, err := client.Delete(ctx, &pb.DeleteRequest{Namespace: namespace, Layer: a.Layer, Digests: a.Digest[:]})
		if err != nil {
			return done, err
		}
		done.Removed += uint64(r.Ok)
		if r.Ok == 0 && !block.IsAddress([]byte(name)) {
			done.absent = f.namespace
		}
	}
	return done, nil
}
