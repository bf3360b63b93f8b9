package router_test

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
)

// page is a page of /metrics.
type page string

func (s *site) metrics() page {
	status, p := s.get(s.admin + "/metrics")
	if status != 200 {
		s.t.Errorf("/metrics: %d %s", status, p)
	}
	return page(p)
}

var sample = regexp.MustCompile(`(?m)^([a-z0-9_:]+)(\{[^}]*\})? (\S+)$`)

// sum adds the samples of the name whose labels include all of the given ones, such as
// node="sim-0".
func (p page) sum(name string, labels ...string) (total float64) {
	for _, line := range p.lines(name) {
		m := sample.FindStringSubmatch(line)
		if !containsAll(m[2], labels) {
			continue
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			panic(err)
		}
		total += v
	}
	return total
}

// lines returns the samples of the name.
func (p page) lines(name string) (all []string) {
	for line := range strings.Lines(string(p)) {
		rest, named := strings.CutPrefix(line, name)
		line = strings.TrimSuffix(line, "\n")
		if named && strings.IndexAny(rest, " {") == 0 && sample.MatchString(line) {
			all = append(all, line)
		}
	}
	return all
}

func containsAll(text string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}

// node is the tested part of an entry of /debug/fleet.
type node struct {
	ID       string  `json:"id"`
	State    string  `json:"state"`
	Eligible bool    `json:"eligible"`
	Suspect  bool    `json:"suspect"`
	Reason   string  `json:"reason"`
	InFlight int     `json:"in_flight"`
	Opens    int     `json:"breaker_opens"`
	Lifetime float64 `json:"learned_lifetime_s"`
}

// fleet returns the nodes by id, and those that serve some model.
func (s *site) fleet() (nodes map[string]node, serving map[string]bool) {
	_, page := s.get(s.admin + "/debug/fleet")
	var view struct {
		Nodes  []node                     `json:"nodes"`
		Models []struct{ Nodes []string } `json:"models"`
	}
	if err := json.Unmarshal(page, &view); err != nil {
		s.t.Errorf("/debug/fleet: %v in %.200s", err, page)
	}
	nodes, serving = map[string]node{}, map[string]bool{}
	for _, n := range view.Nodes {
		nodes[n.ID] = n
	}
	for _, m := range view.Models {
		for _, id := range m.Nodes {
			serving[id] = true
		}
	}
	return nodes, serving
}

func (s *site) nodes() map[string]node {
	nodes, _ := s.fleet()
	return nodes
}

// eligible counts the nodes that may get a request.
func (s *site) eligible() (count int) {
	nodes, serving := s.fleet()
	for id, n := range nodes {
		if n.Eligible && serving[id] {
			count++
		}
	}
	return count
}
