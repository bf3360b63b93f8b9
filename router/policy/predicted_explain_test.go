package policy

import (
	"encoding/json"
	"go/constant"
	"go/token"
	"go/types"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/predict"
)

// TestExpectedFormula checks the cost as a sum. Parts that are 0 for most requests are left out.
func TestExpectedFormula(t *testing.T) {
	p, e := Default(), Explanation{}
	p.Mode, p.Predicted = Predicted, byHand
	s := situationOf(2) // the other one is idle
	const idle = "7.3712 = 2.0 * 2.62 + 2.1312 + 5.0 * 0.0 " +
		"(first_s: 2.62, base_s: 1.0, prefill_s: 1.6, steps_s: 0.02, step_s: 0.0213)"
	if p.Explain(s, &e); e.Terms[0].Formula != idle {
		t.Error(e.Terms[0].Formula)
	}
	at, c := &s.Times[0], &s.Candidates[0]
	at.Decoding, at.Pressing, at.Wait, at.Load = 3, 2, 4, 3
	p.Predicted.Wait = 0.5
	c.Coming, c.Labels, s.Overrides.Targets.First = 50, 0.5, 1
	s.Sharers, s.Shared = 3, 64
	c.EngineSlots, c.InFlight = 4, 5
	const want = "431.6884 = 0.6299 * (2.0 * (7.476 - 0.196) + 2.6313 + 5.0 * 4.0969 + 100 * 6.476) " +
		"(first_s: 7.476, base_s: 1.0, wait_s: 0.5 * 4.0, prefill_s: 0.8, steps_s: 0.026, slot_s: 0.65, " +
		"adapter_s: 3.0, step_s: 0.0263)"
	if p.Explain(s, &e); e.Terms[0].Formula != want || e.Terms[0].Line("a") != "Formula for a: "+want {
		t.Error(e.Terms[0].Formula)
	}
}

// TestDocumentedFormula checks the example in docs/picks.md, which is broken into lines there.
func TestDocumentedFormula(t *testing.T) {
	doc, err := os.ReadFile("../../docs/picks.md")
	if err != nil {
		t.Fatal(err)
	}
	p, e, s := Default(), Explanation{}, situationOf(1)
	p.Mode, s.Output = Predicted, 200
	at := &s.Times[0]
	at.Rates = &predict.Rates{Base: 0.012, Token: 5e-5, Steps: 1, Step: 0.012, Sequence: 1e-4, Block: 1e-6}
	at.Decoding, at.Pressing, at.Wait, at.Blocks = 3, 3, 0.1, 300
	p.Explain(s, &e)
	if line := e.Terms[0].Line("gpu1"); !strings.Contains(strings.Join(strings.Fields(string(doc)), " "), line) {
		t.Error("docs/picks.md does not have " + line)
	}
}

// sides matches the cost of a formula, its sum, and its parts of the time to the first token.
var sides = regexp.MustCompile(`^(\S+) = (.+) \((first_s: (\S+), (.+), )?step_s: \S+\)$`)

// valueOf computes an expression.
func valueOf(t *testing.T, expression string) float64 {
	t.Helper()
	v, err := types.Eval(token.NewFileSet(), nil, token.NoPos, expression)
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	f, _ := constant.Float64Val(constant.ToFloat(v.Value))
	return f
}

// TestAllOfACostIsExplained checks, for any cost, that the terms of an explanation in JSON give its
// total, and that the formula's sum gives it too.
func TestAllOfACostIsExplained(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	name := regexp.MustCompile(`\w+_s: `)
	late, slots := 0, 0
	for range 300 {
		p, s := randomExpectation(rng, 4)
		for i := range s.Candidates {
			s.Candidates[i].EngineSlots, s.Candidates[i].InFlight = rng.Int32N(8), rng.Int32N(12)
			s.Times[i].Load, s.Times[i].Silent = rng.Float64(), rng.Float64()*float64(rng.IntN(2))
		}
		var e Explanation
		p.Explain(s, &e)
		for i := range e.Terms {
			text, err := json.Marshal(ExpectedCost{e.Terms[i].Expected, e.Terms[i].Parts})
			if err != nil {
				t.Fatal(err)
			}
			var x ExpectedCost
			if err := json.Unmarshal(text, &x); err != nil {
				t.Fatal(err)
			}
			w := &x.Weights
			first := x.Base + w.Wait*x.Wait + x.Delay + x.Prefill + x.Steps + x.Slot + x.Adapter
			total := (w.First*(x.First-x.Shared) + x.Answer + w.Others*(x.Stalls+x.Slower) +
				w.Late*x.Late) * x.Labels
			if math.Abs(first-x.First) > 1e-9*x.First || math.Abs(total-e.Terms[i].Total) > 1e-9*total {
				t.Fatalf("first %v and total %v of %s", first, total, text)
			}
			m := sides.FindStringSubmatch(e.Terms[i].Formula)
			if m == nil {
				t.Fatal(e.Terms[i].Formula)
			}
			// Each figure is off by half of its last digit at most.
			weights := w.First + 1 + w.Others*(1+x.Stalls+x.Slower) + w.Late
			bound := 1e-4 * (1 + total/x.Labels + weights*x.Labels)
			if got, sum := valueOf(t, m[1]), valueOf(t, m[2]); math.Abs(got-total) > 1e-4 || math.Abs(got-sum) > bound {
				t.Fatalf("%v is %v within %v: %s", sum, got, bound, e.Terms[i].Formula)
			}
			parts := strings.ReplaceAll(name.ReplaceAllString(m[5], ""), ", ", " + ")
			if sum := valueOf(t, parts); math.Abs(sum-valueOf(t, m[4])) > 1e-4*(8+x.Wait+w.Wait) {
				t.Fatalf("%v are the parts of %s", sum, e.Terms[i].Formula)
			}
			if x.Late > 0 {
				late++
			}
			if x.Slot > 0 {
				slots++
			}
		}
	}
	if late < 20 || slots < 20 {
		t.Errorf("%d costs are late, and %d wait for a slot", late, slots)
	}
}
