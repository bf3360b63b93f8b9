package modes

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
)

const golden = "testdata/golden.jsonl"

// These constants bound the differences, in blocks of cost.
const (
	logged   = 0.0005 // half of the last digit in the crate's log
	apart    = 0.002  // costs closer than this may be picked either way
	rounding = 1e-6   // of floating point
)

// answer is the crate's answer to a situation.
type answer struct {
	Costs   []float64 `json:"costs"`   // of each worker, as logged: three decimals, without its factor
	Factors []float64 `json:"factors"` // the factor of each worker for its labels; none: all 1
	Pick    int       `json:"pick"`
	Cost    float64   `json:"cost"` // of the picked worker, with its factor
}

// tally counts what was compared.
type tally struct {
	situations, costs, picks int
	worst, worstPicked       float64 // largest differences of all costs, and of the picked workers'
}

// compare says whether costs and pick equal the crate's.
func (a *answer) compare(costs []float64, pick int, t *tally) error {
	if len(costs) != len(a.Costs) {
		return fmt.Errorf("%d costs, want %d", len(costs), len(a.Costs))
	}
	for i, cost := range costs {
		factor := 1.0
		if len(a.Factors) > 0 {
			factor = a.Factors[i]
		}
		off := math.Abs(cost - a.Costs[i]*factor)
		if t.costs++; !(off <= logged*factor+rounding) {
			return fmt.Errorf("worker %d: cost %.6f, want %.3f times %.6f", i, cost, a.Costs[i], factor)
		}
		t.worst = max(t.worst, off)
	}
	off := math.Abs(costs[a.Pick] - a.Cost)
	if !(off <= rounding*max(1, a.Cost)) {
		return fmt.Errorf("worker %d: cost %.9f, want %.9f", a.Pick, costs[a.Pick], a.Cost)
	}
	t.worstPicked = max(t.worstPicked, off)
	sorted := slices.Sorted(slices.Values(costs))
	if a.Cost-sorted[0] >= apart {
		return fmt.Errorf("worker %d was picked at %.6f, but the lowest cost is %.6f", a.Pick, a.Cost, sorted[0])
	}
	if len(costs) == 1 || sorted[1]-sorted[0] >= apart {
		if t.picks++; pick != a.Pick {
			return fmt.Errorf("picked worker %d, want %d", pick, a.Pick)
		}
	}
	t.situations++
	return nil
}

// TestGolden compares mode cost with recorded answers of the crate.
func TestGolden(t *testing.T) {
	var count tally
	for i, line := range records(t) {
		costs, pick := costs(t, line.Situation)
		if err := line.Answer.compare(costs, pick, &count); err != nil {
			t.Errorf("%s:%d: %v", golden, i+1, err)
		}
	}
	if count.situations < 300 || count.picks < 200 {
		t.Errorf("%d situations and %d picks are equal, want at least 300 and 200", count.situations, count.picks)
	}
}

// record is a line of the golden file.
type record struct {
	Situation *situation `json:"situation"`
	Answer    *answer    `json:"answer"`
}

// records reads the golden file.
func records(t *testing.T) (lines []record) {
	t.Helper()
	file, err := os.Open(golden)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	in := json.NewDecoder(bufio.NewReader(file))
	for {
		var line record
		if err := in.Decode(&line); errors.Is(err, io.EOF) {
			return lines
		} else if err != nil {
			t.Fatalf("%s:%d: %v", golden, len(lines)+1, err)
		}
		lines = append(lines, line)
	}
}

// number returns the value of an environment variable, or else its default.
func number(t *testing.T, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestDynamo compares mode cost with the crate itself. With MODES_GOLDEN=N the test writes N
// answers to the golden file.
func TestDynamo(t *testing.T) {
	program := os.Getenv("MODES_DYNAMO")
	if program == "" {
		t.Skip("MODES_DYNAMO is not set: make check-modes does")
	}
	seed, n := number(t, "SEED", 1), number(t, "SITUATIONS", 10_000)
	d := newDice(uint64(seed))
	situations := make([]*situation, n)
	for i := range situations {
		situations[i] = d.situation()
	}
	answers := ask(t, program, situations)
	var count tally
	for i, s := range situations {
		costs, pick := costs(t, s)
		if err := answers[i].compare(costs, pick, &count); err != nil {
			text, _ := json.Marshal(s)
			t.Errorf("situation %d: %v\n%s", i, err, text)
		}
		if t.Failed() && i+1-count.situations >= 10 {
			t.Fatal("more situations differ")
		}
	}
	t.Logf("%d of %d situations of seed %d are equal in %d costs and %d picks; largest difference %.1g from "+
		"the picked workers' costs and %.4f from all costs, which the crate logs to 0.001 before the taint factor",
		count.situations, n, seed, count.costs, count.picks, count.worstPicked, count.worst)
	if n := number(t, "MODES_GOLDEN", 0); n > 0 && !t.Failed() {
		write(t, situations, answers, n)
	}
}

// ask returns the crate's answers.
func ask(t *testing.T, program string, situations []*situation) []*answer {
	t.Helper()
	var in, stderr bytes.Buffer
	for _, s := range situations {
		if err := json.NewEncoder(&in).Encode(s); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.CommandContext(t.Context(), program)
	c.Stdin, c.Stderr = &in, &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", program, err, stderr.Bytes())
	}
	answers := make([]*answer, len(situations))
	lines := json.NewDecoder(bytes.NewReader(out))
	for i := range answers {
		if err := lines.Decode(&answers[i]); err != nil {
			t.Fatalf("%s: answer %d: %v", program, i, err)
		}
	}
	return answers
}

// write records n answers: some of each case, and else the first ones.
func write(t *testing.T, situations []*situation, answers []*answer, n int) {
	t.Helper()
	var lines, others []record
	found := map[string]int{}
	for i, s := range situations {
		line, rare := record{s, answers[i]}, false
		for _, c := range cases {
			if c.in(s) {
				found[c.name]++
				rare = rare || found[c.name] <= 2*casesLeast
			}
		}
		if rare {
			lines = append(lines, line)
		} else {
			others = append(others, line)
		}
	}
	lines = append(lines, others...)
	var out bytes.Buffer
	for _, line := range lines[:min(n, len(lines))] {
		if err := json.NewEncoder(&out).Encode(line); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
