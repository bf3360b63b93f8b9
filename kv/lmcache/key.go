package lmcache

import (
	"bytes"
	"strconv"

	"github.com/cognitora/dataplane/kv/alias"
)

// suffixes end the keys of the halves.
var suffixes = [...]string{alias.Whole: "", alias.First: "metadata", alias.Second: "kv_bytes"}

// dtypes are LMCache's names of data types.
var dtypes = [...]string{"half", "bfloat16", "float", "double", "int8", "uint8", "int16", "int32", "int64", "bool",
	"fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz"}

// Check returns an error that names the field of a source with which no key of LMCache fits, if
// any.
func Check(s *alias.Source) error {
	if dtypeOf([]byte(s.DType)) == "" {
		return alias.Unusable("dtype %q is none of LMCache's names, such as bfloat16, half and float", s.DType)
	}
	return s.Check()
}

func dtypeOf(field []byte) string {
	for _, d := range dtypes {
		if string(field) == d {
			return d
		}
	}
	return ""
}

// Parse reads a key. Only keys in exactly the form in which LMCache writes them are read, so Append
// returns them as they were. The error is alias.ErrOther, alias.ErrForm or alias.ErrTags.
func Parse(key []byte) (k alias.Key, err error) {
	if bytes.Count(key, []byte("@")) < 3 {
		return alias.Key{}, alias.ErrOther
	}
	k.Scheme = alias.LMCache
	rest := key
	for _, half := range [...]alias.Half{alias.First, alias.Second} {
		if cut, ok := bytes.CutSuffix(key, []byte(suffixes[half])); ok {
			rest, k.Half = cut, half
		}
	}
	rest, last := cutLast(rest)
	if bytes.IndexByte(last, '%') >= 0 {
		return alias.Key{}, alias.ErrTags
	}
	k.Layer = alias.NoLayer
	if k.DType = dtypeOf(last); k.DType == "" {
		var ok bool
		if k.Layer, ok = number(last, alias.MaxLayers-1); !ok {
			return alias.Key{}, alias.ErrForm
		}
		if rest, last = cutLast(rest); dtypeOf(last) == "" {
			return alias.Key{}, alias.ErrForm
		}
		k.DType = dtypeOf(last)
	}
	model, ok := names(&k, rest)
	if !ok || len(model) == 0 || len(model) > alias.MaxModel {
		return alias.Key{}, alias.ErrForm
	}
	k.Model = string(model)
	return k, nil
}

// names reads world, worker and name from the end of a key without its data type. names returns the
// model before them.
func names(k *alias.Key, rest []byte) (model []byte, ok bool) {
	rest, name := cutLast(rest)
	n, err := strconv.ParseUint(string(name), 16, 64)
	if err != nil || strconv.FormatUint(n, 16) != string(name) {
		return nil, false
	}
	k.Name = alias.Name(n)
	rest, worker := cutLast(rest)
	model, world := cutLast(rest)
	if k.World, ok = number(world, alias.MaxWorkers); !ok || k.World == 0 {
		return nil, false
	}
	k.Worker, ok = number(worker, k.World-1)
	return model, ok
}

// cutLast cuts the last field off. The field is nil if there is none before it.
func cutLast(b []byte) (before, field []byte) {
	i := bytes.LastIndexByte(b, '@')
	if i < 0 {
		return nil, nil
	}
	return b[:i], b[i+1:]
}

// number reads a decimal number as LMCache writes it.
func number(field []byte, most uint32) (uint32, bool) {
	n, err := strconv.ParseUint(string(field), 10, 32)
	if err != nil || n > uint64(most) || field[0] == '0' && len(field) > 1 || field[0] == '+' {
		return 0, false
	}
	return uint32(n), true
}

// Append appends a key as LMCache writes it.
func Append(b []byte, k *alias.Key) []byte {
	b = append(append(b, k.Model...), '@')
	b = append(strconv.AppendUint(b, uint64(k.World), 10), '@')
	b = append(strconv.AppendUint(b, uint64(k.Worker), 10), '@')
	b = append(strconv.AppendUint(b, uint64(k.Name), 16), '@')
	b = append(b, k.DType...)
	if k.Layer != alias.NoLayer {
		b = strconv.AppendUint(append(b, '@'), uint64(k.Layer), 10)
	}
	return append(b, suffixes[k.Half]...)
}
