package prefix

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"

	"lukechampine.com/blake3"
)

var freeze = flag.Bool("freeze", false, "write testdata/digests.json anew; a change of it is a change of the contract")

const goldenFile = "testdata/digests.json"

type golden struct {
	Model   string   `json:"model"`
	Adapter string   `json:"adapter"`
	Salt    string   `json:"salt"`
	Text    string   `json:"text"`
	Tokens  []uint32 `json:"tokens"`
	Seed    string   `json:"seed"`
	Digests []string `json:"digests"`
}

func goldenInputs() []golden {
	long := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 12)
	tokens := make([]uint32, 40)
	for i := range tokens {
		tokens[i] = uint32(i*i*2654435761) + 128000
	}
	return []golden{
		{Model: "meta-llama/Llama-3.1-8B-Instruct", Text: long, Tokens: []uint32{}},
		{Model: "meta-llama/Llama-3.1-8B-Instruct", Salt: "tenant-7", Text: long, Tokens: []uint32{}},
		{Model: "meta-llama/Llama-3.1-8B-Instruct", Adapter: "sql-lora", Text: long, Tokens: []uint32{}},
		{Model: "m", Text: strings.Repeat("x", 63), Tokens: []uint32{}},
		{Model: "m", Text: strings.Repeat("x", 64), Tokens: []uint32{}},
		{Model: "m", Text: "日本語の文章は一文字が三バイト。" + strings.Repeat("é", 50), Tokens: []uint32{}},
		{Model: "m", Text: "", Tokens: tokens},
		{Model: "", Text: strings.Repeat("same block, other place: new name. ", 8)[:256], Tokens: []uint32{}},
	}
}

func filled(g golden) golden {
	seed := Seed(g.Model, g.Adapter, g.Salt)
	g.Seed, g.Digests = hex.EncodeToString(seed[:]), []string{}
	for _, d := range Digests(seed, []byte(g.Text), g.Tokens) {
		g.Digests = append(g.Digests, hex.EncodeToString(d[:]))
	}
	return g
}

func TestDigestsAreFrozen(t *testing.T) {
	if *freeze {
		cases := goldenInputs()
		for i := range cases {
			cases[i] = filled(cases[i])
		}
		b, _ := json.MarshalIndent(cases, "", " ")
		if err := os.WriteFile(goldenFile, append(b, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	var cases []golden
	if err := json.Unmarshal(b, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) != len(goldenInputs()) {
		t.Fatalf("%d frozen cases, want %d", len(cases), len(goldenInputs()))
	}
	for i, want := range cases {
		got := filled(want)
		if got.Seed != want.Seed || strings.Join(got.Digests, ",") != strings.Join(want.Digests, ",") {
			t.Errorf("case %d: got seed %s digests %v", i, got.Seed, got.Digests)
		}
	}
}

func TestDigestsInAnotherLanguage(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed: the digests were not checked by a second implementation")
	}
	out, err := exec.Command(python, "testdata/check_digests.py").CombinedOutput()
	if err != nil {
		t.Fatalf("check_digests.py: %v\n%s", err, out)
	}
}

// keyedLibrary computes the specified digest with the library's keyed mode.
func keyedLibrary(parent Digest, block []byte) (d Digest) {
	h := blake3.New(32, parent[:])
	h.Write(block)
	copy(d[:], h.Sum(nil))
	return d
}

func TestDigestIsKeyedBlake3(t *testing.T) {
	text := []byte(strings.Repeat("every block is keyed by the one before it; ", 40))
	tokens := make([]uint32, len(text)/4)
	for i := range tokens {
		tokens[i] = uint32(text[4*i]) | uint32(text[4*i+1])<<8 | uint32(text[4*i+2])<<16 | uint32(text[4*i+3])<<24
	}
	parent := Seed("model", "adapter", "salt")
	byText, byTokens := Digests(parent, text, nil), Digests(parent, nil, tokens)
	for i := range byText {
		want := keyedLibrary(parent, text[i*BlockBytes:(i+1)*BlockBytes])
		if got := byText[i]; got != want {
			t.Fatalf("block %d of text: %x, want %x", i, got, want)
		}
		if got := byTokens[i]; got != want {
			t.Fatalf("block %d of tokens: %x, want %x", i, got, want)
		}
		parent = want
	}
}

func TestSeedIsBlake3(t *testing.T) {
	for _, salt := range []string{"", "tenant", strings.Repeat("s", 960), strings.Repeat("s", 5000)} {
		want := blake3.Sum256([]byte("cognitora.seq.v1\x00model\x00adapter\x00" + salt))
		if got := Seed("model", "adapter", salt); got != want {
			t.Errorf("salt of %d bytes: %x, want %x", len(salt), got, want)
		}
	}
}

func TestOnlyFullBlocksCount(t *testing.T) {
	var c Chain
	for _, n := range []int{0, 1, 63, 64, 127, 128, 1000} {
		c.Reset(Digest{}, make([]byte, n), nil)
		if c.Blocks() != n/64 || c.Tokens() != int64((n+3)/4) {
			t.Errorf("%d bytes: %d blocks, %d tokens", n, c.Blocks(), c.Tokens())
		}
		c.Reset(Digest{}, nil, make([]uint32, n))
		if c.Blocks() != n/16 || c.Tokens() != int64(n) {
			t.Errorf("%d tokens: %d blocks, %d tokens", n, c.Blocks(), c.Tokens())
		}
	}
	c.Reset(Digest{}, make([]byte, MaxChain*BlockBytes), nil)
	if c.Lengthen(10 * BlockBytes); c.Blocks() != MaxChain || c.length != MaxChain+10 {
		t.Errorf("lengthened: %d blocks, length %v", c.Blocks(), c.length)
	}
}
