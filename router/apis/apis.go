// Package apis knows the endpoints that engines lack. An unknown engine lacks none. A fact about an
// engine that has gained an endpoint holds only for engines that report an older version.
package apis

import (
	"strconv"
	"strings"
)

// Set is a set of endpoints that some engine lacks.
type Set uint16

// These are the endpoints.
const (
	Responses Set = 1 << iota
	Messages
	CountTokens
	Translations
	Speech
	RerankV2
	BareRerank
	BareScore
	ScoreV1
)

var paths = map[string]Set{
	"/v1/responses":             Responses,
	"/v1/messages":              Messages,
	"/v1/messages/count_tokens": CountTokens,
	"/v1/audio/translations":    Translations,
	"/v1/audio/speech":          Speech,
	"/v2/rerank":                RerankV2,
	"/rerank":                   BareRerank,
	"/score":                    BareScore,
	"/v1/score":                 ScoreV1,
}

// fact says that an engine lacks endpoints.
type fact struct {
	engine string
	lacks  Set
	since  version // the first version with the endpoints; zero: no version has them
}

// facts lists what is known of the engines.
//
// vLLM 0.32 documents all of these endpoints but Speech ("Online Serving"). Speech is not listed,
// because servers that extend vLLM call themselves vllm and have it.
//
//   - Responses came with 0.10.0 (pull request 20504). The documentation of 0.8.4 lists none.
//   - Messages came with 0.11.1 (its release notes).
//   - CountTokens came with 0.17.0 (pull request 35588). The sources of 0.16.0 lack it.
//
// SGLang registers rerank and score below /v1 only (python/sglang/srt/entrypoints/http_server.py,
// and "Native APIs" in its documentation of 2026). Its version is not known to the router, so
// Responses and Messages, which it has gained, are not listed.
//
// llama.cpp's server registers /rerank and /v1/rerank, no score, and of audio transcriptions only
// (tools/server/server.cpp at 00dd0816, 2026). It has gained Responses and Messages in builds that
// cannot be told by a number, because a build from source calls itself b0.
var facts = []fact{
	{"vllm", Responses, version{0, 10, 0}},
	{"vllm", Messages, version{0, 11, 1}},
	{"vllm", CountTokens, version{0, 17, 0}},
	{"sglang", RerankV2 | BareRerank | BareScore, version{}},
	{"llama_cpp", RerankV2 | BareScore | ScoreV1 | Translations | Speech, version{}},
}

// Of returns the endpoint of a request's path, which may have a query. Of returns 0 for an endpoint
// that no engine is known to lack.
func Of(path string) Set {
	path, _, _ = strings.Cut(path, "?")
	return paths[path]
}

// Lacking returns the endpoints that an engine of the given kind and version lacks. Either may be
// empty, which means unknown.
func Lacking(engine, reported string) (lacks Set) {
	v, known := parse(reported)
	for _, f := range facts {
		if f.engine == engine && (f.since == version{} || known && v.before(f.since)) {
			lacks |= f.lacks
		}
	}
	return lacks
}

// version is a major, minor and patch number.
type version [3]int

func (v version) before(other version) bool {
	for i := range v {
		if v[i] != other[i] {
			return v[i] < other[i]
		}
	}
	return false
}

// parse reads the numbers of a release such as 0.11.1rc2+cpu. A development build is not known,
// because its number may be that of no release.
func parse(s string) (v version, known bool) {
	if strings.Contains(s, "dev") {
		return v, false
	}
	for i, part := range strings.SplitN(strings.TrimPrefix(s, "v"), ".", len(v)+1) {
		if i == len(v) {
			break
		}
		end := strings.IndexFunc(part, func(c rune) bool { return c < '0' || c > '9' })
		if end < 0 {
			end = len(part)
		}
		n, err := strconv.Atoi(part[:end])
		if err != nil {
			return v, i >= 2 // a release has two numbers at least
		}
		v[i], known = n, i >= 1
		if end < len(part) {
			break
		}
	}
	return v, known
}
