package jinja

// each returns the items of a loop over v.
func each(v Value) []Value {
	switch v := v.(type) {
	case Undefined:
		return nil
	case *List:
		return v.Items
	case string:
		var all []Value
		for _, r := range v {
			all = append(all, string(r))
		}
		return all
	case *Dict:
		if v.open {
			break
		}
		return stringList(v.keys).Items
	}
	throw("a %s cannot be gone through", typeName(v))
	return nil
}

func typeName(v Value) string {
	switch v.(type) {
	case nil:
		return "none"
	case Undefined:
		return "undefined value"
	case bool:
		return "boolean"
	case int64, float64:
		return "number"
	case string:
		return "string"
	case *List:
		return "list"
	case *Dict:
		return "mapping"
	}
	return "function"
}

func (n *constNode) eval(*render, *scope) Value { return n.value }

func (n *nameNode) eval(r *render, s *scope) Value {
	r.step()
	if v, ok := s.get(n.name); ok {
		return v
	}
	if f := globals[n.name]; f != nil {
		return f
	}
	return Undefined{}
}

func evalAll(all []expression, r *render, s *scope) []Value {
	values := make([]Value, len(all))
	for i, e := range all {
		values[i] = e.eval(r, s)
	}
	return values
}

func (n *listNode) eval(r *render, s *scope) Value { return &List{evalAll(n.items, r, s)} }

func (n *dictNode) eval(r *render, s *scope) Value {
	d := &Dict{}
	for i, k := range n.keys {
		key, ok := k.eval(r, s).(string)
		if !ok {
			throw("a key of a mapping that is no string")
		}
		d.Set(key, n.values[i].eval(r, s))
	}
	return d
}

func (n *attrNode) eval(r *render, s *scope) Value {
	r.step()
	of := n.of.eval(r, s)
	switch v := of.(type) {
	case Undefined:
		throw("%q of an undefined value", n.name)
	case *loop:
		return v.member(n.name)
	case *Dict:
		if !v.open && dictMethods[n.name] {
			return method(of, n.name)
		}
		if m, ok := v.Get(n.name); ok {
			return m
		}
		return Undefined{}
	case string:
		if methods[n.name] && !dictMethods[n.name] {
			return method(of, n.name)
		}
	case *List:
		if n.name == "index" || n.name == "count" {
			return method(of, n.name)
		}
		if n.name == "append" {
			throw("append() is not allowed in templates")
		}
	}
	return Undefined{}
}

func (n *itemNode) eval(r *render, s *scope) Value {
	r.step()
	return item(n.of.eval(r, s), n.key.eval(r, s))
}

// item returns of[key].
func item(of, key Value) Value {
	switch v := of.(type) {
	case Undefined:
		throw("an item of an undefined value")
	case *Dict:
		if k, ok := key.(string); ok {
			if m, ok := v.Get(k); ok {
				return m
			}
			if !v.open && dictMethods[k] {
				throw("the method %q as an item", k)
			}
		}
	case *List:
		if i, ok := place(key, len(v.Items)); ok {
			return v.Items[i]
		}
	case string:
		if _, ok := whole(key); ok {
			runes := []rune(v)
			if i, ok := place(key, len(runes)); ok {
				return string(runes[i])
			}
		}
	case *loop:
		if k, ok := key.(string); ok {
			return v.member(k)
		}
	}
	return Undefined{}
}

func place(key Value, n int) (int64, bool) {
	i, ok := whole(key)
	if i < 0 {
		i += int64(n)
	}
	return i, ok && i >= 0 && i < int64(n)
}

func (n *sliceNode) eval(r *render, s *scope) Value {
	r.step()
	of := n.of.eval(r, s)
	bounds := [3]Value{}
	for i, e := range []expression{n.from, n.to, n.step} {
		if e != nil {
			bounds[i] = e.eval(r, s)
		}
	}
	switch v := of.(type) {
	case string:
		runes := []rune(v)
		var out []rune
		for _, i := range span(bounds, len(runes)) {
			out = append(out, runes[i])
		}
		r.grow(len(v))
		return string(out)
	case *List:
		var out []Value
		for _, i := range span(bounds, len(v.Items)) {
			out = append(out, v.Items[i])
		}
		return &List{out}
	}
	return throw("a slice of a %s", typeName(of))
}

// span returns the indexes of a slice by Python's rules.
func span(bounds [3]Value, n int) (places []int) {
	step := int64(1)
	if bounds[2] != nil {
		if step, _ = whole(bounds[2]); step == 0 {
			throw("the step of a slice is no number but 0")
		}
	}
	clip := func(v Value, other int64) int64 {
		if v == nil {
			return other
		}
		i, ok := whole(v)
		if !ok {
			throw("a bound of a slice is no whole number")
		}
		if i < 0 {
			i += int64(n)
		}
		if step > 0 {
			return min(max(i, 0), int64(n))
		}
		return min(max(i, -1), int64(n)-1)
	}
	if step > 0 {
		for i, to := clip(bounds[0], 0), clip(bounds[1], int64(n)); i < to; i += min(step, int64(n)+1) {
			places = append(places, int(i))
		}
		return places
	}
	for i, to := clip(bounds[0], int64(n)-1), clip(bounds[1], -1); i > to; i += max(step, -int64(n)-1) {
		places = append(places, int(i))
	}
	return places
}

func (n *callNode) eval(r *render, s *scope) Value {
	r.step()
	f, ok := n.of.eval(r, s).(function)
	if !ok {
		throw("line %d of the template calls what is no function", n.line)
	}
	return f(r, evalAll(n.args, r, s), evalNamed(n.named, r, s))
}

func evalNamed(named []namedArg, r *render, s *scope) map[string]Value {
	if len(named) == 0 {
		return nil
	}
	all := make(map[string]Value, len(named))
	for _, a := range named {
		all[a.name] = a.value.eval(r, s)
	}
	return all
}

func (n *filterNode) eval(r *render, s *scope) Value {
	r.step()
	return n.apply(r, n.of.eval(r, s), evalAll(n.args, r, s), evalNamed(n.named, r, s))
}

func (n *testNode) eval(r *render, s *scope) Value {
	r.step()
	return n.apply(n.of.eval(r, s), evalAll(n.args, r, s)) != n.not
}

func (n *chooseNode) eval(r *render, s *scope) Value {
	if truth(n.test.eval(r, s)) {
		return n.yes.eval(r, s)
	}
	return n.no.eval(r, s)
}
