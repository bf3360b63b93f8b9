package block

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"lukechampine.com/blake3"
)

// MaxNamespace is the longest canonical text of a namespace, in bytes.
const MaxNamespace = 512

// ErrNamespace says that a namespace is not well-formed.
var ErrNamespace = errors.New("block: not a namespace")

// Namespace holds everything that makes the bytes of two blocks differ, except the blocks' tokens.
// A namespace of a model's blocks leaves Space empty and sets all other fields; Tenant is optional.
// A namespace of client keys sets only Space and, optionally, Tenant.
type Namespace struct {
	Model    string // name as served, such as meta-llama/Llama-3.1-8B
	Revision string // of the weights
	DType    string // of the cached keys and values, such as bf16 or fp8_e4m3
	Layout   string // of the payload, named by its writer, such as vllm.NHD
	Tokens   uint32 // per block

	TP, TPRank uint32 // tensor-parallel size and rank; 1 and 0 without
	PP, PPRank uint32 // pipeline-parallel size and rank; 1 and 0 without

	Space  string // for client keys: resp.<db> or s3.<bucket>
	Tenant string // owner of the blocks; empty: all tenants
}

// FirstRank returns the namespace of rank 0 of the same engine.
func (n Namespace) FirstRank() Namespace {
	n.TPRank, n.PPRank = 0, 0
	return n
}

// String returns the canonical text: kv1;model;revision;dtype;layout;tokens;tp.rank;pp.rank;tenant
// or key1;space;tenant. String percent-encodes %, ;, : and everything that is not a visible ASCII
// character.
func (n Namespace) String() string {
	if n.Space != "" {
		return ofKeys + escape(n.Space) + ";" + escape(n.Tenant)
	}
	return fmt.Sprintf("kv1;%s;%s;%s;%s;%d;%d.%d;%d.%d;%s", escape(n.Model), escape(n.Revision), escape(n.DType),
		escape(n.Layout),
		n.Tokens, n.TP, n.TPRank, n.PP, n.PPRank, escape(n.Tenant))
}

// ofKeys begins the canonical text of every namespace of client keys.
const ofKeys = "key1;"

// OfKeys says whether a canonical text is that of a namespace of client keys.
func OfKeys(text string) bool { return strings.HasPrefix(text, ofKeys) }

// TenantOf returns the escaped tenant in a canonical text; empty: all tenants.
func TenantOf(canonical string) string { return canonical[strings.LastIndexByte(canonical, ';')+1:] }

// ID returns the namespace's part of an address.
func (n Namespace) ID() ModelID { return IDOf(n.String()) }

// IDOf returns the ID of the namespace with the given canonical text.
func IDOf(canonical string) ModelID {
	return blake3.Sum256(append([]byte(nameContext), canonical...))
}

// Check returns an error that names the unusable field of n, if any.
func (n Namespace) Check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrNamespace, fmt.Sprintf(format, args...))
	}
	if n.Space != "" {
		if n != (Namespace{Space: n.Space, Tenant: n.Tenant}) {
			return bad("a namespace of keys has a space and a tenant only")
		}
	} else {
		for _, f := range []struct{ name, value string }{{"model", n.Model}, {"revision", n.Revision},
			{"dtype", n.DType}, {"layout", n.Layout}} {
			if f.value == "" {
				return bad("%s is empty", f.name)
			}
		}
		switch {
		case n.Tokens == 0:
			return bad("tokens per block is 0")
		case n.TP == 0 || n.TPRank >= n.TP:
			return bad("tensor-parallel rank %d of %d", n.TPRank, n.TP)
		case n.PP == 0 || n.PPRank >= n.PP:
			return bad("pipeline-parallel rank %d of %d", n.PPRank, n.PP)
		}
	}
	if length := len(n.String()); length > MaxNamespace {
		return bad("its text has %d bytes, at most %d are allowed", length, MaxNamespace)
	}
	return nil
}

// ParseNamespace reads a canonical text. ParseNamespace refuses any other spelling of the same
// namespace.
func ParseNamespace(text string) (Namespace, error) {
	bad := func(why string) (Namespace, error) {
		return Namespace{}, fmt.Errorf("%w: %s; write kv1;model;revision;dtype;layout;tokens;tp.rank;pp.rank;tenant",
			ErrNamespace, why)
	}
	if len(text) > MaxNamespace {
		return bad(fmt.Sprintf("it has %d bytes, at most %d are allowed", len(text), MaxNamespace))
	}
	f := strings.Split(text, ";")
	var n Namespace
	var err error
	switch {
	case f[0] == "key1" && len(f) == 3:
		err = fields(f[1:], &n.Space, &n.Tenant)
		if n.Space == "" {
			return bad("the space is empty")
		}
	case f[0] == "kv1" && len(f) == 9:
		err = errors.Join(fields(f[1:5], &n.Model, &n.Revision, &n.DType, &n.Layout), fields(f[8:], &n.Tenant),
			numbers(f[5], &n.Tokens), numbers(f[6], &n.TP, &n.TPRank), numbers(f[7], &n.PP, &n.PPRank))
	default:
		return bad("it is of an unknown kind or has the wrong number of fields")
	}
	if err != nil {
		return bad(err.Error())
	}
	if err := n.Check(); err != nil {
		return Namespace{}, err
	}
	if n.String() != text {
		return bad("it is not in canonical form, which is " + n.String())
	}
	return n, nil
}

func fields(from []string, to ...*string) error {
	for i, p := range to {
		s, err := url.PathUnescape(from[i])
		if err != nil {
			return err
		}
		*p = s
	}
	return nil
}

func numbers(from string, to ...*uint32) error {
	parts := strings.Split(from, ".")
	if len(parts) != len(to) {
		return fmt.Errorf("%q is not %d numbers with a point between", from, len(to))
	}
	for i, p := range to {
		v, err := strconv.ParseUint(parts[i], 10, 32)
		if err != nil {
			return fmt.Errorf("%q is not a number below 2^32", parts[i])
		}
		*p = uint32(v)
	}
	return nil
}

// plain says whether a byte is unescaped in a canonical text.
func plain(c byte) bool { return c > ' ' && c < 0x7f && c != '%' && c != ';' && c != ':' }

func escape(s string) string {
	for i := range len(s) {
		if plain(s[i]) {
			continue
		}
		b := []byte(s[:i])
		for ; i < len(s); i++ {
			if plain(s[i]) {
				b = append(b, s[i])
			} else {
				b = fmt.Appendf(b, "%%%02X", s[i])
			}
		}
		return string(b)
	}
	return s
}
