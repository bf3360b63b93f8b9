package wire

import "testing"

// TestStamps checks that requests and answers carry stamps in fields that older versions leave
// zero.
func TestStamps(t *testing.T) {
	frames := map[string]Frame{}
	for _, c := range goldens(t).Frames {
		frames[c.Name] = frameOf(t, c.Frame)
	}
	asked := Stamp{0xA1B2C3D4, 7}
	for name, want := range map[string]Stamp{"get": {}, "put": {}, "grant": {}, "get with a stamp": asked,
		"put with a stamp": asked, "grant with a stamp": asked} {
		f := frames[name]
		if got := f.Stamp(); got != want {
			t.Errorf("%s has %+v", name, got)
		}
		again := f
		again.SetStamp(want)
		if again.Total != f.Total || again.Offset != f.Offset {
			t.Errorf("%s: a stamp is put elsewhere", name)
		}
	}
	request, answer := frames["get with a stamp"], frames["get answered with a stamp"]
	if got := answer.Answered(&request); got != (Stamp{0xA1B2C3D4, 6}) {
		t.Errorf("%+v", got)
	}
	old := frames["get answered"]
	if got := old.Answered(&request); got.State != 0 {
		t.Errorf("a version without stamps: %+v", got)
	}
	old.Answer(Stamp{0xA1B2C3D4, 6})
	if old.DeadlineMS != answer.DeadlineMS {
		t.Error("an answer's stamp is put elsewhere")
	}
}
