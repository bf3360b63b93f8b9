package config

import (
	"io"
	"strings"
	"testing"
)

func TestABooleanTakesItsValueAfterAnEqualsSign(t *testing.T) {
	type settings struct {
		On bool `toml:"on" default:"true"`
	}
	var s settings
	err := Load(&s, Options{Args: []string{"--on", "false"}, Out: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "a boolean is written --on=false") {
		t.Errorf("%v", err)
	}
	if err := Load(&s, Options{Args: []string{"--on=false"}}); err != nil || s.On {
		t.Errorf("%v, %v", err, s.On)
	}
}
