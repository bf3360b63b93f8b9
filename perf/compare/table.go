package compare

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"
	"time"

	"github.com/BurntSushi/toml"
)

//go:embed contestants.toml
var contestantsTOML string

//go:embed scenarios.toml
var scenariosTOML string

// Contestant is one row of contestants.toml.
type Contestant struct {
	Name      string   `toml:"name"`
	Note      string   `toml:"note"`
	Group     string   `toml:"group"`     // empty: the group of routers with one hop
	Reference bool     `toml:"reference"` // the others of its group are compared with it
	Peer      bool     `toml:"peer"`      // another project's KV-aware router
	Program   string   `toml:"program"`   // program that must be installed; empty: nothing is started
	Install   string   `toml:"install"`   // how to install it
	Version   []string `toml:"version"`   // command that prints the version
	Health    string   `toml:"health"`    // path that answers 200; empty: accepting a connection is enough
	Admin     string   `toml:"admin"`     // name of the port with /metrics, if any
	NeedsEtcd bool     `toml:"needs_etcd"`
	NeedsPKI  bool     `toml:"needs_pki"`
	NeedsKeys bool     `toml:"needs_keys"` // its clients need an API key
	TLS       bool     `toml:"tls"`        // clients speak TLS, and check the certificate of needs_pki

	// Like names an earlier contestant. A row with Like has the earlier contestant's program,
	// processes, version and admin, its health unless the row has another one, and also its Env.
	Like string   `toml:"like"`
	Env  []string `toml:"env"`

	Processes []ProcessRow `toml:"process"`
}

// ProcessRow is one program of a contestant.
type ProcessRow struct {
	Command []string          `toml:"command"`
	Each    []string          `toml:"each"`
	Env     []string          `toml:"env"`
	Files   map[string]string `toml:"files"` // files in the contestant's directory, by name
	// ForEachEngine starts the program once for each engine.
	ForEachEngine bool `toml:"for_each_engine"`
}

// Scenario is one row of scenarios.toml.
type Scenario struct {
	Name  string `toml:"name"`
	Title string `toml:"title"`
	Kind  string `toml:"kind"`
	Group string `toml:"group"`

	Clients     int     `toml:"clients"`
	Streams     int     `toml:"streams"`
	Rate        float64 `toml:"rate"` // tokens per second of a stream, or requests per second
	PromptBytes int     `toml:"prompt_bytes"`
	Shared      float64 `toml:"shared"`
	Documents   int     `toml:"documents"`
	Tokens      int     `toml:"tokens"`
	Requests    uint64  `toml:"requests"`

	Sweep  string    `toml:"sweep"` // streams or rate, measured for each of Values
	Values []float64 `toml:"values"`
	Plot   Plot      `toml:"plot"`

	Only        []string `toml:"only"` // names of contestants; empty: all of the group
	Show        []string `toml:"show"`
	Repetitions int      `toml:"repetitions"` // 0: the number of the run
	Quick       float64  `toml:"quick"`       // seconds of one measurement in the quick form
	Full        float64  `toml:"full"`
}

// Plot says which figure of a sweep is drawn, and the names of the axes.
type Plot struct {
	Figure string `toml:"figure"`
	X      string `toml:"x"`
	Y      string `toml:"y"`
}

// seconds returns the duration of one measurement of s; 0: s is not part of the form.
func (s *Scenario) seconds(full bool) time.Duration {
	if full {
		return time.Duration(s.Full * float64(time.Second))
	}
	return time.Duration(s.Quick * float64(time.Second))
}

// points returns the scenarios of a sweep; only s if there is no sweep.
func (s *Scenario) points() []Scenario {
	if s.Sweep == "" {
		return []Scenario{*s}
	}
	var points []Scenario
	for _, v := range s.Values {
		p := *s
		if s.Sweep == "streams" {
			p.Streams = int(v)
		} else {
			p.Rate = v
		}
		points = append(points, p)
	}
	return points
}

// Contestants returns the rows of contestants.toml.
func Contestants() []Contestant {
	var doc struct {
		Contestant []Contestant `toml:"contestant"`
	}
	embedded("contestants.toml", contestantsTOML, &doc)
	for i := range doc.Contestant {
		if c := &doc.Contestant[i]; c.Like != "" {
			other := named(doc.Contestant[:i], c.Like, Contestant.name)
			c.Program, c.Install, c.Version = other.Program, other.Install, other.Version
			c.Health, c.Admin, c.Processes = cmp.Or(c.Health, other.Health), other.Admin, other.Processes
		}
	}
	return doc.Contestant
}

func (c Contestant) name() string { return c.Name }

func (s Scenario) name() string { return s.Name }

// named returns the row with this name, which must be there.
func named[T any](rows []T, name string, of func(T) string) *T {
	return &rows[slices.IndexFunc(rows, func(r T) bool { return of(r) == name })]
}

// ContestantNamed returns a row of contestants.toml, which must be there.
func ContestantNamed(name string) *Contestant { return named(Contestants(), name, Contestant.name) }

// ScenarioNamed returns a row of scenarios.toml, which must be there.
func ScenarioNamed(name string) *Scenario { return named(Scenarios(), name, Scenario.name) }

// Scenarios returns the rows of scenarios.toml.
func Scenarios() []Scenario {
	var doc struct {
		Scenario []Scenario `toml:"scenario"`
	}
	embedded("scenarios.toml", scenariosTOML, &doc)
	return doc.Scenario
}

// embedded decodes a table that is part of the program. A mistake in the table is a bug.
func embedded(name, text string, into any) {
	if err := Decode(name, text, into); err != nil {
		panic(err)
	}
}

// Decode decodes a table, and refuses unknown keys.
func Decode(name, text string, into any) error {
	meta, err := toml.Decode(text, into)
	if unknown := meta.Undecoded(); err == nil && len(unknown) > 0 {
		err = fmt.Errorf("unknown key %s", unknown[0])
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
