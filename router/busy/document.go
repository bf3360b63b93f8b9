package busy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/internal/config"
)

// These are the names of the limits in documents.
const (
	DecodeBlocksName    = "active_decode_blocks_threshold"
	PrefillTokensName   = "active_prefill_tokens_threshold"
	PrefillFractionName = "active_prefill_tokens_threshold_frac"
)

// maxLimit bounds the limits of tokens and fractions, far above real values.
const maxLimit = 1 << 40

// FieldError is a wrong member of a document.
type FieldError struct{ Field, Problem string }

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// Document is a model with its thresholds, as answers show them: with null for a limit that is not
// set.
type Document struct {
	Model           string   `json:"model"`
	DecodeBlocks    *float64 `json:"active_decode_blocks_threshold"`
	PrefillTokens   *int     `json:"active_prefill_tokens_threshold"`
	PrefillFraction *float64 `json:"active_prefill_tokens_threshold_frac,omitempty"`
}

// DocumentFor returns the document of a model.
func DocumentFor(model string, t Thresholds) Document {
	return Document{model, t.DecodeBlocks, t.PrefillTokens, t.PrefillFraction}
}

// ParseFor reads thresholds from a JSON object, and the name of their model from its member model.
// An absent member and a null leave their limit unset. An error that concerns a member is a
// *FieldError.
func ParseFor(doc []byte) (model string, t Thresholds, err error) {
	members, err := membersOf(doc)
	if err != nil {
		return "", t, err
	}
	if value, ok := members["model"]; ok && json.Unmarshal(value, &model) != nil || model == "" {
		return "", t, &FieldError{"model", "name the model, as GET /v1/models lists it"}
	}
	delete(members, "model")
	return model, t, t.read(members)
}

// ErrNotJSON is wrapped by the error of a body that is no JSON object.
var ErrNotJSON = errors.New("the body must be one JSON object")

// membersOf returns the members of an object. The error wraps ErrNotJSON, or is a *FieldError.
func membersOf(doc []byte) (map[string]json.RawMessage, error) {
	in := json.NewDecoder(bytes.NewReader(doc))
	if len(bytes.TrimSpace(doc)) == 0 {
		return nil, fmt.Errorf("%w; it is empty", ErrNotJSON)
	}
	if open, err := in.Token(); err != nil || open != json.Delim('{') {
		return nil, ErrNotJSON
	}
	members := map[string]json.RawMessage{}
	for in.More() {
		key, err := in.Token()
		name, ok := key.(string)
		var value json.RawMessage
		if err != nil || !ok || in.Decode(&value) != nil {
			return nil, fmt.Errorf("%w; it is malformed at byte %d", ErrNotJSON, in.InputOffset())
		}
		if _, twice := members[name]; twice {
			return nil, &FieldError{name, "appears twice"}
		}
		members[name] = value
	}
	if _, err := in.Token(); err != nil {
		return nil, fmt.Errorf("%w; it is cut short", ErrNotJSON)
	}
	if _, err := in.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w; something follows it at byte %d", ErrNotJSON, in.InputOffset())
	}
	return members, nil
}

// read takes over the members of a document.
func (t *Thresholds) read(members map[string]json.RawMessage) error {
	var tokens *float64
	limits := map[string]struct {
		to    **float64
		least string // the fix
		most  float64
	}{
		DecodeBlocksName:    {&t.DecodeBlocks, "a share of the KV blocks from 0 to 1, such as 0.85", 1},
		PrefillTokensName:   {&tokens, "a whole number of tokens, such as 10000", maxLimit},
		PrefillFractionName: {&t.PrefillFraction, "a share of the tokens that the engine computes at once, such as 0.9", maxLimit},
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		limit, known := limits[name]
		if !known {
			names := slices.Sorted(maps.Keys(limits))
			unknown := &FieldError{name, "unknown; there are " + strings.Join(names, ", ")}
			if meant := config.Nearest(name, names); meant != "" {
				unknown.Problem += "; did you mean " + meant + "?"
			}
			return unknown
		}
		var v *float64
		if json.Unmarshal(members[name], &v) != nil || v != nil && !(*v >= 0 && *v <= limit.most) ||
			v != nil && name == PrefillTokensName && *v != math.Trunc(*v) {
			return &FieldError{name, fmt.Sprintf("%.40s is refused; write %s", members[name], limit.least)}
		}
		*limit.to = v
	}
	if tokens != nil {
		t.PrefillTokens = new(int(*tokens))
	}
	return nil
}
