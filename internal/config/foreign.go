package config

import (
	_ "embed"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// variables.txt has a line for each variable of the daemons: its name, and the programs that have
// the setting. A name that ends in _ is a section's.
//
//go:embed variables.txt
var variables string

// Variables writes variables.txt from the configurations of the daemons, and from the variables
// that only cgn-ctl reads, sorted by name.
func Variables(w io.Writer, daemons map[string]any, ctl []string) error {
	owners := map[string][]string{}
	for _, name := range ctl {
		owners[name] = []string{"cgn-ctl"}
	}
	for _, daemon := range slices.Sorted(maps.Keys(daemons)) {
		s, err := inspect(daemons[daemon])
		if err != nil {
			return err
		}
		byName, _ := s.envNames()
		for name := range byName {
			owners[name] = append(owners[name], daemon)
		}
		for _, sec := range s.sections {
			for _, prefix := range sec.envs() {
				owners[prefix] = append(owners[prefix], daemon)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(owners)) {
		if _, err := fmt.Fprintln(w, name, strings.Join(owners[name], " ")); err != nil {
			return err
		}
	}
	return nil
}

// foreign tells whether name is a setting of another program, and whether it is in a section that
// only other programs have.
func foreign(program, name string) (setting, section bool) {
	for line := range strings.Lines(variables) {
		words := strings.Fields(line)
		if slices.Contains(words[1:], program) {
			continue
		}
		setting = setting || words[0] == name
		section = section || strings.HasSuffix(words[0], "_") && strings.HasPrefix(name, words[0])
	}
	return setting, section
}
