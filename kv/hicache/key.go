package hicache

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/kv/alias"
)

// ErrBeside says that a key is of what a model needs besides the keys and values of its pages. The
// Key has only the model then.
var ErrBeside = errors.New("hicache: an object that pages need besides")

const hashLen = 64 // digits

// unified begins what follows HASH in SGLang's key scheme of this name.
const unified = "ukv1-"

// pools are SGLang's names of what models keep besides pages (PoolName). Longer names come before
// their ends.
var pools = []string{
	deepseek + "c1_indexer_scale", deepseek + "c2_indexer_scale", deepseek + "c4_indexer_scale",
	deepseek + "c4_indexer_state", deepseek + "c1_indexer", deepseek + "c2_indexer", deepseek + "c4_indexer",
	deepseek + "c4_rope", deepseek + "c4_state", deepseek + "c128_rope", deepseek + "c128_state", deepseek + "c1",
	deepseek + "c2", deepseek + "c4", deepseek + "c128",
	"auxiliary_swa", "draft_indexer", "draft_swa", "draft", "indexer", mamba, "swa",
}

const (
	deepseek = "deepseek_v4_" // begins the names of the pools of DeepSeek V4
	mamba    = "mamba"        // has ranks in each key
)

// Parse reads a key. The error is alias.ErrOther, alias.ErrForm or ErrBeside.
func Parse(key []byte) (alias.Key, error) {
	if len(key) <= hashLen+1 || key[hashLen] != '_' {
		return alias.Key{}, alias.ErrOther
	}
	var h Hash
	if n, err := hex.Decode(h[:], key[:hashLen]); err != nil || n != len(h) || !lower(key[:hashLen]) {
		return alias.Key{}, alias.ErrOther
	}
	rest := string(key[hashLen+1:])
	if strings.HasPrefix(rest, unified) || strings.Contains(rest, "/") {
		return alias.Key{}, alias.ErrForm
	}
	if model, sure, _ := cutPool(rest); sure {
		return alias.Key{Scheme: alias.HiCache, Model: model}, checked(model, ErrBeside)
	}
	k := alias.Key{Scheme: alias.HiCache, World: 1, Layer: alias.NoLayer, Name: h.Name()}
	rest, k.Half = cutHalf(rest)
	var ok bool
	if k.Model, k.Worker, k.World, ok = ranks(rest); !ok {
		k.Scheme = alias.HiCacheMLA
		if k.Half == alias.Second {
			return alias.Key{}, alias.ErrForm
		}
	}
	if err := checked(k.Model, nil); err != nil {
		return alias.Key{}, err
	}
	return k, nil
}

// Beside returns the model whose pages need the object of a key that Parse takes for a page, unless
// it is one: a key without ranks says either. The object is a page if the key's model has a name
// that ends like a pool.
func Beside(k *alias.Key) (model string, ok bool) {
	if k.Scheme != alias.HiCacheMLA {
		return "", false
	}
	model, _, ok = cutPool(k.Model)
	return model, ok && checked(model, nil) == nil
}

// checked returns ErrForm for a name that no model has in a key, and otherwise err.
func checked(model string, err error) error {
	if model == "" || len(model) > alias.MaxModel {
		return alias.ErrForm
	}
	return err
}

func lower(digits []byte) bool { return bytes.Equal(digits, bytes.ToLower(digits)) }

// cutHalf cuts the end of a half off.
func cutHalf(s string) (string, alias.Half) {
	if cut, ok := strings.CutSuffix(s, "_k"); ok {
		return cut, alias.First
	}
	if cut, ok := strings.CutSuffix(s, "_v"); ok {
		return cut, alias.Second
	}
	return s, alias.Whole
}

// ranks splits MODEL_RANK_RANKS. Without RANK and RANKS, ok is false and all of s the model.
func ranks(s string) (model string, rank, of uint32, ok bool) {
	f := strings.Split(s, "_")
	if len(f) < 3 {
		return s, 0, 1, false
	}
	rank, okRank := number(f[len(f)-2])
	of, okOf := number(f[len(f)-1])
	if !okRank || !okOf || rank >= of || of > alias.MaxWorkers {
		return s, 0, 1, false
	}
	return strings.Join(f[:len(f)-2], "_"), rank, of, true
}

// number reads a number as Python writes it.
func number(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && strconv.FormatUint(n, 10) == s
}

// endsOfPools follow the name of a pool, unless _N or _conv_N does.
var endsOfPools = []string{"", "_k", "_v", "_temporal"}

// cutPool cuts ranks and the name of a pool off, with what may follow it. It is not sure if the
// name of a model with MLA may end so.
func cutPool(s string) (model string, sure, ok bool) {
	for _, pool := range pools {
		at := strings.LastIndex(s, "_"+pool)
		if at < 0 {
			continue
		}
		after := s[at+1+len(pool):]
		n, conv := strings.CutPrefix(after, "_conv")
		if !conv {
			n = after
		}
		n, numbered := strings.CutPrefix(n, "_")
		_, ok := number(n)
		model, _, _, ranked := ranks(s[:at])
		if pool == mamba && !ranked || !(numbered && ok || slices.Contains(endsOfPools, after)) {
			continue
		}
		// No model is named like a pool of DeepSeek's. With MLA a page has no half of values.
		return model, ranked || strings.HasPrefix(pool, deepseek) || after == "_v", true
	}
	return "", false, false
}

// Model returns the name of a model in keys, of the name by which SGLang serves it.
func Model(served string) string { return strings.ReplaceAll(served, "/", "-") }

// Check returns an error that names the field of a source with which no page fits, if any.
func Check(s *alias.Source) error {
	switch {
	case s.DType != "" || s.Layers > 0:
		return alias.Unusable("a page has one key for all layers and no data type: give neither dtype nor layers")
	case s.Scheme == alias.HiCacheMLA && s.World != 1:
		return alias.Unusable("a page of a model with MLA is stored once: give 1 worker, not %d", s.World)
	case strings.Contains(s.Model, "/"):
		return alias.Unusable("model %q in the keys has a slash; SGLang writes - for it", s.Model)
	}
	return s.Check()
}
