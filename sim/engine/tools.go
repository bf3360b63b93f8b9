package engine

import (
	"encoding/json"
	"strings"
)

// toolCall is the tool call in an answer.
type toolCall struct {
	name, arguments string
}

type toolCallJSON struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function functionJSON `json:"function"`
}

type functionJSON struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

func (t *toolCall) json(id, arguments string) toolCallJSON {
	return toolCallJSON{ID: id, Type: "function", Function: functionJSON{t.name, arguments}}
}

type toolSpec struct {
	Function struct {
		Name       string          `json:"name"`
		Parameters json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// askToCall is the user text that makes the answer call the first tool under tool_choice auto.
const askToCall = "call the tool"

// pickTool returns the call in the answer: of the named tool, or of the first one if a call is
// required or the user asks for it. pickTool returns nil for an answer in text.
func pickTool(specs []toolSpec, choice, userText string) (*toolCall, error) {
	switch choice {
	case "none":
		return nil, nil
	case "", "auto":
		if len(specs) == 0 || !strings.Contains(userText, askToCall) {
			return nil, nil
		}
		return callOf(specs[0]), nil
	case "required":
		if len(specs) == 0 {
			return nil, badRequest("When using `tool_choice`, `tools` must be set.", "tool_choice")
		}
		return callOf(specs[0]), nil
	}
	for _, s := range specs {
		if s.Function.Name == choice {
			return callOf(s), nil
		}
	}
	return nil, badRequest("Tool `"+choice+"` has not been passed in `tools`.", "tool_choice")
}

func callOf(s toolSpec) *toolCall {
	return &toolCall{name: s.Function.Name, arguments: exampleOf(s.Function.Parameters)}
}

type responseFormat struct {
	Type       string `json:"type"`
	JSONSchema struct {
		Schema json.RawMessage `json:"schema"`
	} `json:"json_schema"`
}

// example returns a text in the format, or "" if any text will do.
func (f *responseFormat) example() string {
	switch {
	case f == nil:
		return ""
	case f.Type == "json_schema":
		return exampleOf(f.JSONSchema.Schema)
	case f.Type == "json_object":
		return `{"answer":"sun"}`
	}
	return ""
}

// exampleOf returns a JSON document that satisfies a plain JSON schema.
func exampleOf(schema json.RawMessage) string {
	var s schemaNode
	if json.Unmarshal(schema, &s) != nil {
		return "{}"
	}
	doc, err := json.Marshal(s.value())
	if err != nil {
		return "{}"
	}
	return string(doc)
}

// schemaNode is the part of JSON schema used for examples.
type schemaNode struct {
	Type       any                   `json:"type"` // a name, or a list of names
	Enum       []any                 `json:"enum"`
	Const      any                   `json:"const"`
	Properties map[string]schemaNode `json:"properties"`
	Items      *schemaNode           `json:"items"`
}

func (s schemaNode) value() any {
	kind, _ := s.Type.(string)
	if kinds, ok := s.Type.([]any); ok && len(kinds) > 0 {
		kind, _ = kinds[0].(string)
	}
	switch {
	case s.Const != nil:
		return s.Const
	case len(s.Enum) > 0:
		return s.Enum[0]
	case kind == "string":
		return "sun"
	case kind == "integer" || kind == "number":
		return 7
	case kind == "boolean":
		return true
	case kind == "null":
		return nil
	case kind == "array":
		return s.list()
	}
	return s.object()
}

func (s schemaNode) list() []any {
	if s.Items == nil {
		return []any{}
	}
	return []any{s.Items.value()}
}

func (s schemaNode) object() map[string]any {
	o := map[string]any{}
	for name, property := range s.Properties {
		o[name] = property.value()
	}
	return o
}
