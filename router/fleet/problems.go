package fleet

import (
	"slices"
	"strings"
)

// maxProblems bounds the problems kept at a time. A problem beyond the bound is only logged.
const maxProblems = 2 * maxNodes

// subject is the thing that a problem is about. The problem ends when the subject is removed.
type subject struct {
	kind subjectKind
	name string
}

type subjectKind uint8

const (
	ofBackend  subjectKind = iota // a static node, by its id, while it is configured
	ofName                        // a DNS name, while a backend has it
	ofNodeKey                     // a node's key in etcd, while it exists
	ofModelKey                    // a model's key in etcd, while it exists
	ofModel                       // a model, while it has settings
)

func (s subject) String() string { return s.kind.name(s.name) }

// name returns how problems name a thing of the kind.
func (k subjectKind) name(name string) string {
	return [...]string{"", "name ", "nodes/", "models/", "model "}[k] + name
}

// problem records why the subject is not served as configured. problem logs only the beginning of a
// problem.
func (f *Fleet) problem(kind subjectKind, name, reason string) {
	s := subject{kind, name}
	old, had := f.problems[s]
	if old == reason {
		return
	}
	if had || len(f.problems) < maxProblems {
		f.problems[s] = reason
		f.dirty = true
	}
	if !had {
		f.o.Logger.Warn("not served as configured", "subject", s.String(), "reason", reason)
	}
}

func (f *Fleet) solved(kind subjectKind, name string) {
	s := subject{kind, name}
	if _, had := f.problems[s]; had {
		delete(f.problems, s)
		f.dirty = true
	}
}

// solveOthers forgets the problems of a kind whose subjects are gone.
func (f *Fleet) solveOthers(kind subjectKind, there func(name string) bool) {
	for s := range f.problems {
		if s.kind == kind && !there(s.name) {
			f.solved(kind, s.name)
		}
	}
}

func (f *Fleet) listProblems() []Problem {
	out := make([]Problem, 0, len(f.problems))
	for s, reason := range f.problems {
		out = append(out, Problem{Subject: s.String(), Reason: reason})
	}
	slices.SortFunc(out, func(a, b Problem) int { return strings.Compare(a.Subject, b.Subject) })
	return out
}
