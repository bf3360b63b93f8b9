package config

// goneReason is the problem of a setting that there was once.
const goneReason = "is no setting any more: the program has one value for it; remove it"

// renamed returns the problem of the older name of a setting or section.
func renamed(name string) string { return "is an older name, which is not read; write " + name }

// goneAs returns the problem of a setting that was once, or had another name; "" if the name is
// neither. named makes names of the kind of name from paths.
func (s *schema) goneAs(name string, named func(path string) string) string {
	for path, reason := range s.gone {
		if named(path) == name {
			return reason
		}
	}
	return ""
}
