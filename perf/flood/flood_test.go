package flood

import (
	"testing"

	"github.com/cognitora/dataplane/router/keys"
)

// TestWrongKeys checks that every kind of wrong key is sent, over new connections too.
func TestWrongKeys(t *testing.T) {
	revoked, _ := keys.Generate()
	of := wrongKeys(revoked)
	var all, fresh [3]int
	for n := range uint64(4000) {
		text, kind := of(n), 0
		switch _, _, wellFormed := keys.Parse([]byte(text)); {
		case text == revoked:
			kind = 1
		case wellFormed:
			kind = 2
		}
		all[kind]++
		if n%5 == 0 {
			fresh[kind]++
		}
	}
	if all != [3]int{2000, 1000, 1000} || fresh != [3]int{400, 200, 200} {
		t.Errorf("%v, over new connections %v", all, fresh)
	}
}
