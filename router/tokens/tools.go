package tokens

import (
	"strings"

	"github.com/cognitora/dataplane/internal/jinja"
	"github.com/cognitora/dataplane/internal/jsonscan"
)

// setCalls adds the tool calls to an assistant's message. The calls' arguments become values.
func (t *talk) setCalls(to *jinja.Dict, v jinja.Value) error {
	calls, ok := v.(*jinja.List)
	if !ok && v != nil {
		return ErrBody
	}
	if v == nil || len(calls.Items) == 0 {
		return nil
	}
	out, err := converted(calls, t.call)
	to.Set("tool_calls", out)
	return err
}

// call returns a tool call for the template.
func (t *talk) call(call *jinja.Dict) (*jinja.Dict, error) {
	function, _ := member(call, "function").(*jinja.Dict)
	if function == nil || function.Len() != 2 || member(function, "name") == nil || member(call, "id") == nil ||
		call.Len() > 3 {
		return nil, ErrOption
	}
	arguments, err := argumentsOf(member(function, "arguments"))
	f := dict("arguments", arguments, "name", member(function, "name"))
	if t.asWritten {
		f = dict("name", member(function, "name"), "arguments", arguments)
	}
	return dict("id", member(call, "id"), "function", f, "type", "function"), err
}

// argumentsOf parses the arguments of a call, a JSON object. Anything else becomes an empty object.
func argumentsOf(v jinja.Value) (*jinja.Dict, error) {
	if object, ok := v.(*jinja.Dict); ok {
		return object, nil
	}
	text, ok := v.(string)
	if !ok {
		return nil, ErrForm
	}
	c := jsonscan.New([]byte(text))
	value, err := jinja.Read(&c)
	if err != nil && c.Err() == nil {
		return nil, err // a number that does not keep its value
	}
	if c.End(); c.Err() != nil {
		if strings.Contains(text, "NaN") || strings.Contains(text, "Infinity") {
			return nil, ErrForm // Python accepts NaN and Infinity
		}
		return &jinja.Dict{}, nil
	}
	if object, ok := value.(*jinja.Dict); ok {
		return object, nil
	}
	return &jinja.Dict{}, nil
}

// toolsOf returns the tools for the template, or nil for none.
func toolsOf(v jinja.Value) (*jinja.List, error) {
	list, ok := v.(*jinja.List)
	if v == nil || ok && len(list.Items) == 0 {
		return nil, nil
	}
	if !ok {
		return nil, ErrBody
	}
	return converted(list, chatTool)
}

// chatTool returns a tool for the template.
func chatTool(tool *jinja.Dict) (*jinja.Dict, error) {
	function, _ := member(tool, "function").(*jinja.Dict)
	if function == nil || tool.Len() > 2 {
		return nil, ErrOption
	}
	for i := range function.Len() {
		switch name, _ := function.Member(i); name {
		case "name", "description", "parameters", "strict":
		default:
			return nil, ErrForm // engines differ in the other members that they keep
		}
	}
	return asTool(function, member(function, "parameters"))
}

// asTool returns a tool for the template.
func asTool(from *jinja.Dict, parameters jinja.Value) (*jinja.Dict, error) {
	name, _ := member(from, "name").(string)
	if name == "" {
		return nil, ErrBody
	}
	f := dict("name", name, "description", member(from, "description"), "parameters", parameters)
	if strict := member(from, "strict"); strict != nil {
		f.Set("strict", strict)
	}
	return dict("type", "function", "function", f), nil
}
