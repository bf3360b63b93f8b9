package policy

import "time"

// InForce is the fleet's policy in a router, as /debug/fleet shows it.
type InForce struct {
	Mode   string `json:"mode"`
	Source string `json:"source"` // where the document comes from: "file NAME", "etcd KEY" or a default
	// DocumentMode is the mode of the document where a setting of the router, ModeBy, overrides it.
	DocumentMode string   `json:"document_mode,omitempty"`
	ModeBy       string   `json:"mode_by,omitempty"`
	Settings     *Policy  `json:"settings"` // all of them, defaults too
	Refused      *Refusal `json:"refused,omitempty"`
}

// Refusal tells of the newest document of a source. The router refused it, or could not read it, so
// an older one stays in force.
type Refusal struct {
	Source string    `json:"source"`
	Reason string    `json:"reason"`
	Unread bool      `json:"unread,omitempty"` // the router could not read it
	At     time.Time `json:"at"`
}

// String says why the newest document is not in force, and what is.
func (r *Refusal) String() string {
	if r.Unread {
		return r.Reason + "; the policy that it had stays in force until there is a new one, and a router that starts " +
			"without it fails"
	}
	return "refused, and the one before stays in force: " + r.Reason
}

// Overridden returns the note on a mode that is not the document's own; "" if it is.
func (f *InForce) Overridden() string {
	if f.ModeBy == "" {
		return ""
	}
	return f.ModeBy + " overrides mode " + f.DocumentMode + " of the document"
}

// Effective lists the settings that have an effect, for a log line.
func (f *InForce) Effective() (all []any) {
	for _, s := range f.Settings.Settings() {
		if s.Name != "mode" {
			all = append(all, s.Name, s.Value)
		}
	}
	return all
}
