package request

import "testing"

// TestSessionIDs checks the id that each client sends, and which one wins.
func TestSessionIDs(t *testing.T) {
	byRank := [...]string{
		"X-Cgn-Session-Id", "X-Dynamo-Session-Id", "X-Claude-Code-Session-Id", "Thread-Id", "X-Session-Id",
	}
	if SessionHeaders != byRank {
		t.Errorf("the headers are %q, want %q in this order", SessionHeaders, byRank)
	}
	var all SessionIDs
	for i, name := range byRank {
		var one SessionIDs
		if !one.Note([]byte(name), []byte("id")) || string(one.ID()) != "id" || one[i] == nil {
			t.Errorf("%s is not known, or is not number %d", name, i)
		}
		all.Note([]byte(name), []byte(name))
		all.Note([]byte(name), []byte("a second one"))
	}
	for i, name := range byRank {
		if string(all.ID()) != name {
			t.Errorf("%s wins over %s", all.ID(), name)
		}
		if all[i] = nil; i%2 == 0 {
			all[i] = []byte{} // a header without an id
		}
	}
	if all.ID() != nil || all.Note([]byte("X-Cgn-Node"), []byte("n")) || all.Note([]byte("Session-Id"), []byte("n")) {
		t.Errorf("an id without a session: %q", all)
	}
}
