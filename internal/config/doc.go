// Package config fills a program's configuration struct from its defaults, a strict TOML file, the
// environment and command-line flags, in that order of rising precedence, and renders the struct as
// help and as reference tables.
//
// The struct is the schema. Each exported field carries tags:
//
//	toml:"max_body"    its key; a nested struct is a section (required)
//	default:"64MiB"    its initial value, in the text form of its type
//	flag:"listen"      its flag; without the tag --section.key, "-" for none
//	help:"..."         one sentence for --help and the reference
//	env:"CGN_ETCD"     a second, shorter name in the environment
//	was:"limits.body"  its older path, or a section's: accepted with a warning, as
//	                   are its variable and flag; not inside a list of tables
//	gone:"idle stall"  of a section: keys that it had once, which are refused as such
//	oneof:"a|b"        the only strings it may hold
//	empty:"refused"    nobody may set it to nothing, because an empty value leaves
//	                   open what the setting protects
//	split:"space"      elements of a list in the environment are separated by
//	                   spaces, because they may hold commas
//
// The environment name is CGN_<SECTION>_<KEY> (CGN_<KEY> at the top level). A section may have a
// twin: a list of structs with the same key. A file then has either [key] or [[key]]. If it has
// [[key]], the section is neither checked nor shown. The keys of a struct with the tag
// toml:",inline" belong to the table around it.
//
// Field types: string, bool, int, int32, int64, uint32, uint64, float64, Duration, Size, any type
// with UnmarshalText, []string, and slices or string-keyed maps of structs ([[section]] and
// [section.name] tables).
package config
