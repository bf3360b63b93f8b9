package jinja

type test func(v Value, args []Value) bool

func is[T any](v Value) bool {
	_, ok := v.(T)
	return ok
}

// with returns the only argument of a test.
func with(args []Value) Value {
	if len(args) != 1 {
		throw("a test with %d arguments", len(args))
	}
	return args[0]
}

func iterable(v Value, _ []Value) bool {
	return is[string](v) || is[*List](v) || is[*Dict](v) || is[Undefined](v)
}

func comparing(op string) test {
	return func(v Value, args []Value) bool { return compare(op, v, with(args)) }
}

func remainder(v, by Value) int64 {
	n, ok := whole(arithmetic("%", v, by))
	if !ok {
		throw("the remainder of a %s", typeName(v))
	}
	return n
}

var tests = map[string]test{
	"defined":   func(v Value, _ []Value) bool { return !is[Undefined](v) },
	"undefined": func(v Value, _ []Value) bool { return is[Undefined](v) },
	"none":      func(v Value, _ []Value) bool { return v == nil },
	"string":    func(v Value, _ []Value) bool { return is[string](v) },
	"mapping":   func(v Value, _ []Value) bool { return is[*Dict](v) },
	"number":    func(v Value, _ []Value) bool { return is[int64](v) || is[float64](v) || is[bool](v) },
	"integer":   func(v Value, _ []Value) bool { return is[int64](v) },
	"float":     func(v Value, _ []Value) bool { return is[float64](v) },
	"boolean":   func(v Value, _ []Value) bool { return is[bool](v) },
	"true":      func(v Value, _ []Value) bool { return v == Value(true) },
	"false":     func(v Value, _ []Value) bool { return v == Value(false) },
	"iterable":  iterable,
	"sequence":  iterable,
	"callable":  func(v Value, _ []Value) bool { return is[function](v) },
	"eq":        comparing("=="), "equalto": comparing("=="), "ne": comparing("!="), "in": comparing("in"),
	"lt": comparing("<"), "lessthan": comparing("<"), "le": comparing("<="), "gt": comparing(">"),
	"greaterthan": comparing(">"), "ge": comparing(">="),
	"odd":         func(v Value, _ []Value) bool { return remainder(v, int64(2)) == 1 },
	"even":        func(v Value, _ []Value) bool { return remainder(v, int64(2)) == 0 },
	"divisibleby": func(v Value, args []Value) bool { return remainder(v, with(args)) == 0 },
}
