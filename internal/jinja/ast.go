package jinja

// A statement writes text or changes variables. An expression has a value.
type (
	statement interface {
		run(r *render, s *scope) flow
	}
	expression interface {
		eval(r *render, s *scope) Value
	}
)

// flow says how a loop continues after a statement.
type flow uint8

const (
	goOn flow = iota
	breakLoop
	continueLoop
)

type (
	dataNode  struct{ text string }
	printNode struct{ value expression }
	ifNode    struct {
		tests  []expression
		bodies [][]statement
		other  []statement
	}
	forNode struct {
		targets []string
		over    expression
		only    expression // condition for items; nil: all items
		body    []statement
		other   []statement
	}
	setNode struct {
		targets []string
		member  string // member of the namespace that is the only target; empty: none
		value   expression
		body    []statement // a block that replaces the value
	}
	macroNode struct {
		name     string
		params   []string
		defaults map[string]expression
		body     []statement
	}
	blockNode struct{ body []statement }
	flowNode  struct{ flow flow }
)

type (
	constNode struct{ value Value }
	nameNode  struct{ name string }
	listNode  struct {
		items []expression
		tuple bool
	}
	dictNode struct{ keys, values []expression }
	attrNode struct {
		of   expression
		name string
	}
	itemNode  struct{ of, key expression }
	sliceNode struct{ of, from, to, step expression }
	callNode  struct {
		of    expression
		args  []expression
		named []namedArg
		line  int
	}
	filterNode struct {
		of    expression
		name  string
		apply filter
		args  []expression
		named []namedArg
		line  int
	}
	testNode struct {
		of    expression
		apply test
		args  []expression
		not   bool
	}
	unaryNode struct {
		op string
		of expression
	}
	binaryNode struct {
		op          string
		left, right expression
	}
	compareNode struct {
		first expression
		ops   []string
		rest  []expression
	}
	chooseNode struct{ test, yes, no expression }
)

type namedArg struct {
	name  string
	value expression
}

// walk calls see for every statement and expression of a template.
func walk(body []statement, see func(any)) {
	for _, st := range body {
		see(st)
		switch n := st.(type) {
		case *ifNode:
			for _, b := range n.bodies {
				walk(b, see)
			}
			walk(n.other, see)
		case *forNode:
			walk(n.body, see)
			walk(n.other, see)
		case *setNode:
			walk(n.body, see)
		case *macroNode:
			walk(n.body, see)
		case *blockNode:
			walk(n.body, see)
		}
	}
}

// about tells whether e is the variable, or its member key if key is not empty, or a filtered or
// sliced form of that.
func about(e expression, variable, key string) bool {
	switch n := e.(type) {
	case *filterNode:
		return about(n.of, variable, key)
	case *testNode:
		return about(n.of, variable, key)
	case *sliceNode:
		return about(n.of, variable, key)
	case *attrNode:
		return key != "" && n.name == key && about(n.of, variable, "") && is[*nameNode](n.of)
	case *itemNode:
		c, ok := n.key.(*constNode)
		return ok && key != "" && c.value == Value(key) && about(n.of, variable, "") && is[*nameNode](n.of)
	case *nameNode:
		return key == "" && n.name == variable
	}
	return false
}

// TakesParts tells whether the template iterates over the parts of a message's content. Engines
// give the content as one text to a template that does not iterate. TakesParts follows the rule of
// vLLM's --chat-template-content-format auto.
func (t *Template) TakesParts() bool {
	var sets []*setNode
	var loops []*forNode
	walk(t.body, func(n any) {
		switch n := n.(type) {
		case *setNode:
			sets = append(sets, n)
		case *forNode:
			loops = append(loops, n)
		}
	})
	lists := []string{"messages"}
	for i := 0; i < len(lists); i++ {
		for _, s := range sets {
			if s.value != nil && s.member == "" && len(s.targets) == 1 && about(s.value, lists[i], "") &&
				s.targets[0] != lists[i] && len(lists) < 64 {
				lists = append(lists, s.targets[0])
			}
		}
	}
	for _, l := range loops {
		for _, list := range lists {
			if len(l.targets) != 1 || !about(l.over, list, "") {
				continue
			}
			for _, inner := range loops {
				if len(inner.targets) == 1 && about(inner.over, l.targets[0], "content") {
					return true
				}
			}
		}
	}
	return false
}
