package config

import (
	"fmt"
	"reflect"
	"slices"
)

// Changed names the settings, like "limits.max_body", that differ between two
// structs of one type, in the order they are declared. Both arguments are
// pointers; neither is kept.
func Changed(was, is any) ([]string, error) {
	if reflect.TypeOf(was) != reflect.TypeOf(is) {
		return nil, fmt.Errorf("config: %T and %T are not the same", was, is)
	}
	before, err := inspect(was)
	if err != nil {
		return nil, err
	}
	after, err := inspect(is)
	if err != nil {
		return nil, err
	}
	var names []string
	for i, f := range before.fields {
		if !same(f.value, after.fields[i].value) {
			names = append(names, f.path())
		}
	}
	return names, nil
}

// same holds an empty list and no list for one thing.
func same(a, b reflect.Value) bool {
	if slices.Contains([]reflect.Kind{reflect.Slice, reflect.Map}, a.Kind()) && a.Len()+b.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}
