package kv

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/router/holdings"
)

// counting says how many blocks of a model count in routing, and why others do not.
type counting struct {
	Namespace string   `json:"namespace"` // of rank 0
	Model     string   `json:"model"`
	Blocks    uint64   `json:"blocks"`
	ReadBy    []string `json:"read_by"` // nodes; null: none has said that it reads any of the model
	Reasons   []reason `json:"not_counted"`
	silent    bool     // without ReadBy: nodes of other models have said what they read
}

// reason says why blocks do not count.
type reason struct {
	Blocks uint64 `json:"blocks"`
	What   string `json:"what"` // what they are: blocks of 16 tokens, or objects
	Why    string `json:"why"`
}

// countings returns what counts in routing, by namespace.
func countings(r *pb.StatsResponse) []counting {
	list, several := make([]counting, 0, len(r.Counting)), map[string]int{}
	for _, of := range r.Counting {
		known := of.Counted + of.Unplaced + of.Incomplete + of.OtherLayers
		if n, err := block.ParseNamespace(of.Namespace); err == nil && known > 0 {
			several[n.Model]++
		}
	}
	for _, of := range r.Counting {
		n, err := block.ParseNamespace(of.Namespace)
		if err != nil {
			continue // of another version
		}
		c := counting{Namespace: of.Namespace, Model: n.Model, Blocks: of.Counted, Reasons: reasons(of, n, r.Values)}
		c.silent = len(r.Readers) > 0
		if modelIsRead(n.Model, r.Readers) {
			c.ReadBy = []string{}
		}
		for _, reader := range r.Readers {
			if slices.Contains(reader.Namespaces, of.Namespace) {
				c.ReadBy = append(c.ReadBy, reader.Node)
			}
		}
		if c.ReadBy == nil && several[n.Model] > 1 && of.Counted > 0 {
			c.Reasons = append(c.Reasons, reason{of.Counted, "blocks", unsaid})
		}
		if c.ReadBy != nil && len(c.ReadBy) == 0 && of.Counted > 0 {
			c.Reasons = append(c.Reasons, reason{of.Counted, "blocks", unread(n, r.Readers)})
		}
		list = append(list, c)
	}
	return list
}

// modelIsRead says whether an engine has said that it reads blocks of a model.
func modelIsRead(model string, readers []*pb.Reader) bool {
	return slices.ContainsFunc(readers, func(r *pb.Reader) bool {
		return slices.ContainsFunc(r.Namespaces, func(text string) bool {
			n, err := block.ParseNamespace(text)
			return err == nil && n.Model == model
		})
	})
}

// unsaid says why no node counts the blocks of a model in one of several namespaces.
const unsaid = "the model has several namespaces, and nobody says which one the engine reads"

// reasons says why blocks of a namespace do not count, whoever reads them. values are the daemon's
// metrics.
func reasons(c *pb.Counting, n block.Namespace, values map[string]int64) []reason {
	incomplete := fmt.Sprintf("not all %d ranks have them", uint64(n.TP)*uint64(n.PP))
	if uint64(n.TP)*uint64(n.PP) > residency.MaxRanks {
		incomplete = fmt.Sprintf("they have more than %d ranks", residency.MaxRanks)
	}
	nameless := "their writer gave no names of their blocks, or others than are known"
	switch {
	case n.Blocks() == 0:
		nameless = fmt.Sprintf("TOKENS = %d is no multiple of %d up to %d", n.Tokens, block.Tokens,
			block.Tokens*(block.MaxNames+1))
	case values["fleet_hidden"] > 0:
		nameless = "all reads are misses until the fleet's purges are read (/readyz of the daemon says why)"
	case n.Blocks() == 1 && values["residency_overflow"] > 0:
		nameless = "there are more blocks than the daemon tells routers of"
	case n.Blocks() == 1:
		nameless = "they have expired, or others have names that begin as theirs do"
	}
	all := []reason{
		{c.Unplaced, "blocks", "a block before them in their prompt is not known"},
		{c.Incomplete, "blocks", incomplete},
		{c.OtherLayers, "blocks", "they are of layers besides the first, which stands for all"},
		{c.NamelessRam, "objects in RAM", nameless},
		{c.NamelessSsd, "objects on SSD", nameless},
	}
	return slices.DeleteFunc(all, func(r reason) bool { return r.Blocks == 0 })
}

// unread says why no engine reads a namespace that has said what it reads: in what it differs from
// the most similar namespace of its model that an engine reads.
func unread(n block.Namespace, readers []*pb.Reader) string {
	const nobody = "no engine that has said what it reads can read them"
	var differs []string
	for _, r := range readers {
		for _, text := range r.Namespaces {
			of, err := block.ParseNamespace(text)
			if err != nil || of.Model != n.Model {
				continue
			}
			if d := differences(n, of); differs == nil || len(d) < len(differs) {
				differs = d
			}
		}
	}
	if len(differs) == 0 {
		return nobody
	}
	return nobody + "; the nearest differs in " + strings.Join(differs, ", ")
}

// differences names what two namespaces of a model differ in.
func differences(a, b block.Namespace) (list []string) {
	for _, f := range []struct {
		name string
		same bool
	}{
		{"revision", a.Revision == b.Revision}, {"data type", a.DType == b.DType},
		{"layout", a.Layout == b.Layout}, {"tokens of a block", a.Tokens == b.Tokens},
		{"ranks", a.TP == b.TP && a.PP == b.PP}, {"tenant", a.Tenant == b.Tenant},
	} {
		if !f.same {
			list = append(list, f.name)
		}
	}
	return list
}

// writeCounting prints which blocks count in routing.
func (s *statsReport) writeCounting(t *cli.Table) {
	if len(s.Counting) == 0 {
		return
	}
	t.Line("")
	t.Row("BLOCKS", "IN ROUTING FOR", "NAMESPACE OF RANK 0")
	for i := range s.Counting {
		c := &s.Counting[i]
		nodes := "all"
		switch {
		case len(c.ReadBy) > 0:
			nodes = strings.Join(c.ReadBy, ", ")
		case c.ReadBy != nil:
			nodes = "none that says"
		case slices.ContainsFunc(c.Reasons, func(r reason) bool { return r.Why == unsaid }):
			nodes = "none"
		case c.silent:
			nodes = "all that say nothing"
		}
		t.Row(c.Blocks, nodes, c.Namespace)
	}
	for i := range s.Counting {
		for _, r := range s.Counting[i].Reasons {
			t.Line(fmt.Sprintf("%d %s do not count: %s (%s)", r.Blocks, r.What, r.Why, s.Counting[i].Namespace))
		}
	}
	if n := len(s.Counting); n > holdings.MaxConfigurations {
		t.Line(fmt.Sprintf("a router counts %d of these %d namespaces, first those that engines read", holdings.MaxConfigurations, n))
	}
	if n := s.Values["residency_overflow"]; n > 0 {
		t.Line(fmt.Sprintf("%d blocks were left out because the daemon tells routers of no more", n))
	}
	if n := s.Values["residency_reads_refused"]; n > 0 {
		t.Line(fmt.Sprintf("%d namespaces that engines read were not noted: %d nodes and %d namespaces of each are", n,
			residency.MaxReaders, residency.MaxReads))
	}
}
