package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// These constants bound a policy document.
const (
	MaxQueueMax   = 1 << 20
	TTFTSLOmsMax  = 3_600_000
	RunDelayMax   = 60_000   // ms
	RetransmitMax = 100      // %
	MaxShareMax   = 100      // times the fleet's load
	documentMax   = 64 << 10 // bytes
)

// FieldError reports a problem with one field of a policy.
type FieldError struct {
	Field, Value, Allowed string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: %s is refused, allowed: %s", e.Field, e.Value, e.Allowed)
}

// Parse reads a policy document,
// {"mode":…,"weights":{"kv":…,"load":…,"power":…,"capacity":…,"pending":…},
// "tiers":{"device":…,"host":…,"disk":…},"epsilon":…,"max_share":…,"max_queue":…,
// "ttft_slo_ms":…,"run_delay_ms":…,"retransmit_pct":…}, or the flat form with the weights at the
// top. A key missing in the document gets its default. Parse accepts or refuses the whole document.
// Parse's error joins one FieldError per problem.
func Parse(doc []byte) (*Policy, error) {
	if len(doc) > documentMax {
		return nil, fmt.Errorf("policy: %d bytes, at most %d are read", len(doc), documentMax)
	}
	d := document{p: *Default(), section: section}
	if err := d.read(doc); err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	// An unreadable member has its default here, so that faults reports only the other ones.
	if errs := append(d.errs, d.p.faults(d.section)...); len(errs) > 0 {
		return nil, fmt.Errorf("policy: %w", errors.Join(errs...))
	}
	return &d.p, nil
}

// Validate reports every field out of its range, NaN included.
func (p *Policy) Validate() error {
	if errs := p.faults(section); len(errs) > 0 {
		return fmt.Errorf("policy: %w", errors.Join(errs...))
	}
	return nil
}

// section is the place of the weights in a nested document.
const section = "weights."

// faults returns one error for every field out of its range.
func (p *Policy) faults(section string) (errs []error) {
	w := &p.Score.Weights
	for _, n := range []struct {
		field string
		v, hi float64
	}{
		{section + "kv", w.KV, 1}, {section + "load", w.Load, 1}, {section + "power", w.Power, 1},
		{section + "capacity", w.Capacity, 1}, {section + "pending", w.Pending, 1},
		{"tiers.device", p.Score.Tiers.Device, 1}, {"tiers.host", p.Score.Tiers.Host, 1}, {"tiers.disk", p.Score.Tiers.Disk, 1},
		{"epsilon", p.Score.Epsilon, 1}, {"max_queue", float64(p.MaxQueue), MaxQueueMax},
		{"ttft_slo_ms", float64(p.TTFTSLOms), TTFTSLOmsMax},
		{"run_delay_ms", p.Score.RunDelayMs, RunDelayMax}, {"retransmit_pct", p.Score.RetransmitPct, RetransmitMax},
	} {
		if !(n.v >= 0 && n.v <= n.hi) {
			errs = append(errs, &FieldError{n.field, fmt.Sprint(n.v), fmt.Sprintf("0 to %g", n.hi)})
		}
	}
	if int(p.Mode) >= len(modes) {
		errs = append(errs, &FieldError{"mode", fmt.Sprint(uint8(p.Mode)), strings.Join(ModeNames(), ", ")})
	}
	if w.KV == 0 && w.Load == 0 && w.Power == 0 && w.Capacity == 0 {
		errs = append(errs, &FieldError{"weights", "all 0", "one of kv, load, power and capacity above 0"})
	}
	if p.Score.MaxShare != 0 && !(p.Score.MaxShare >= 1 && p.Score.MaxShare <= MaxShareMax) {
		errs = append(errs, &FieldError{"max_share", fmt.Sprint(p.Score.MaxShare), maxShareAllowed})
	}
	return errs
}

// MarshalJSON writes the nested form. Parse reads the nested form back to an equal policy.
func (p *Policy) MarshalJSON() ([]byte, error) {
	type weights struct {
		KV       float64 `json:"kv"`
		Load     float64 `json:"load"`
		Power    float64 `json:"power"`
		Capacity float64 `json:"capacity"`
		Pending  float64 `json:"pending"`
	}
	type tiers struct {
		Device float64 `json:"device"`
		Host   float64 `json:"host"`
		Disk   float64 `json:"disk"`
	}
	return json.Marshal(struct {
		Mode       string  `json:"mode"`
		Weights    weights `json:"weights"`
		Tiers      tiers   `json:"tiers"`
		Epsilon    float64 `json:"epsilon"`
		MaxShare   float64 `json:"max_share"`
		MaxQueue   int     `json:"max_queue"`
		TTFTSLOms  int     `json:"ttft_slo_ms"`
		RunDelayMs float64 `json:"run_delay_ms"`
		Retransmit float64 `json:"retransmit_pct"`
	}{
		p.Mode.String(), weights(p.Score.Weights), tiers(p.Score.Tiers),
		p.Score.Epsilon, p.Score.MaxShare, p.MaxQueue, p.TTFTSLOms, p.Score.RunDelayMs, p.Score.RetransmitPct,
	})
}

// ParseMode returns the mode with the given name.
func ParseMode(name string) (Mode, error) {
	if i := slices.Index(ModeNames(), name); i >= 0 {
		return Mode(i), nil
	}
	return 0, &FieldError{"mode", fmt.Sprintf("%q", name), strings.Join(ModeNames(), ", ")}
}

// document is a policy being read, with the problems so far.
type document struct {
	p       Policy
	section string // prefix of the weights' names
	errs    []error
}

var (
	weightKeys = []string{"kv", "load", "power", "capacity", "pending"}
	tierKeys   = []string{"device", "host", "disk"}
	topKeys    = append([]string{
		"mode", "weights", "tiers", "epsilon", "max_share", "max_queue",
		"ttft_slo_ms", "run_delay_ms", "retransmit_pct",
	}, weightKeys...)
)

// read reads the members of doc, and gathers problems with single members in d.errs. read returns
// an error about the document as a whole.
func (d *document) read(doc []byte) error {
	nested := false
	flat := ""
	err := members(doc, func(key string, value json.RawMessage) {
		switch {
		case key == "weights":
			nested = true
			d.within("weights", weightKeys, value)
		case key == "tiers":
			d.within("tiers", tierKeys, value)
		case slices.Contains(weightKeys, key):
			flat, d.section = key, ""
			d.number(key, value, d.share(key), upTo(1))
		default:
			d.scalar(key, value)
		}
	})
	if err != nil {
		return err
	}
	if nested && flat != "" {
		d.errs = append(d.errs, &FieldError{
			flat, "a weight both inside and outside of weights", "one form or the other",
		})
	}
	return nil
}

// within reads the numbers of one section.
func (d *document) within(section string, keys []string, value json.RawMessage) {
	err := members(value, func(key string, v json.RawMessage) {
		if !slices.Contains(keys, key) {
			d.unknown(section+"."+key, keys)
			return
		}
		d.number(section+"."+key, v, d.share(key), upTo(1))
	})
	if err != nil {
		d.errs = append(d.errs, &FieldError{section, err.Error(), "an object of " + strings.Join(keys, ", ")})
	}
}

// share returns the address of the number with the given key.
func (d *document) share(key string) *float64 {
	w := &d.p.Score.Weights
	return map[string]*float64{
		"kv": &w.KV, "load": &w.Load, "power": &w.Power, "capacity": &w.Capacity, "pending": &w.Pending,
		"device": &d.p.Score.Tiers.Device, "host": &d.p.Score.Tiers.Host, "disk": &d.p.Score.Tiers.Disk,
	}[key]
}

func (d *document) scalar(key string, value json.RawMessage) {
	switch key {
	case "mode":
		d.mode(value)
	case "epsilon":
		d.number(key, value, &d.p.Score.Epsilon, upTo(1))
	case "max_share":
		d.number(key, value, &d.p.Score.MaxShare, maxShareAllowed)
	case "max_queue":
		d.integer(key, value, &d.p.MaxQueue, MaxQueueMax)
	case "run_delay_ms":
		d.number(key, value, &d.p.Score.RunDelayMs, upTo(RunDelayMax))
	case "retransmit_pct":
		d.number(key, value, &d.p.Score.RetransmitPct, upTo(RetransmitMax))
	case "ttft_slo_ms":
		d.integer(key, value, &d.p.TTFTSLOms, TTFTSLOmsMax)
	default:
		d.unknown(key, topKeys)
	}
}

func (d *document) mode(value json.RawMessage) {
	var name string
	if json.Unmarshal(value, &name) != nil {
		name = string(value)
	}
	m, err := ParseMode(name)
	if err != nil {
		d.errs = append(d.errs, err)
	}
	d.p.Mode = m
}

func (d *document) number(field string, value json.RawMessage, into *float64, allowed string) {
	if json.Unmarshal(value, into) != nil || bytes.Equal(value, []byte("null")) {
		d.errs = append(d.errs, &FieldError{field, string(value), allowed})
	}
}

// maxShareAllowed describes the allowed values of max_share.
var maxShareAllowed = fmt.Sprintf("0, or 1 to %d", MaxShareMax)

func upTo(limit int) string { return fmt.Sprintf("a number from 0 to %d", limit) }

func (d *document) integer(field string, value json.RawMessage, into *int, limit int) {
	var f float64
	bad := json.Unmarshal(value, &f) != nil || bytes.Equal(value, []byte("null"))
	if bad || f != math.Trunc(f) || f < 0 || f > float64(limit) {
		d.errs = append(d.errs, &FieldError{field, string(value), fmt.Sprintf("a whole number from 0 to %d", limit)})
		return
	}
	*into = int(f)
}

func (d *document) unknown(field string, keys []string) {
	d.errs = append(d.errs, fmt.Errorf("%s: unknown key; there are %s", field, strings.Join(keys, ", ")))
}

// members calls fn for each member of one JSON object. members refuses duplicates and anything
// after the object.
func members(doc []byte, fn func(key string, value json.RawMessage)) error {
	dec := json.NewDecoder(bytes.NewReader(doc))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return errors.New("not a JSON object")
	}
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		key, ok := t.(string)
		if err != nil || !ok {
			return fmt.Errorf("malformed JSON at byte %d", dec.InputOffset())
		}
		var value json.RawMessage
		if dec.Decode(&value) != nil {
			return fmt.Errorf("%s: malformed JSON at byte %d", key, dec.InputOffset())
		}
		if seen[key] {
			return fmt.Errorf("%s: given twice", key)
		}
		seen[key] = true
		fn(key, value)
	}
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("malformed JSON at byte %d", dec.InputOffset())
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("unexpected data after the object at byte %d", dec.InputOffset())
	}
	return nil
}
