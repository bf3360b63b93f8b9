package config

import (
	"fmt"
	"reflect"
	"slices"
)

// Changed returns the settings, such as "limits.max_body", that differ between two structs of one
// type, in the order of their declaration. Both arguments are pointers. Changed keeps neither.
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

// same compares two values. An empty list equals no list.
func same(a, b reflect.Value) bool {
	if slices.Contains([]reflect.Kind{reflect.Slice, reflect.Map}, a.Kind()) && a.Len()+b.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}
