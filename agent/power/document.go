package power

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// The types of Redfish documents have the fields that the agent reads. DMTF's schemas define the
// documents: EnvironmentMetrics and PowerSubsystem replaced Power in 2020. Vendors differ. A field
// of another type than the schema's counts as missing, and the rest of the document is still used.

// lenient returns the value of a document's part; zero if the part is of another type.
func lenient[T any](text []byte) (v T) {
	if err := json.Unmarshal(text, &v); err != nil {
		return *new(T)
	}
	return v
}

// link is a reference to another document.
type link string

func (l *link) UnmarshalJSON(text []byte) error {
	*l = link(lenient[struct {
		ID string `json:"@odata.id"`
	}](text).ID)
	if !validLink(string(*l)) {
		*l = ""
	}
	return nil
}

const maxLink = 512

// validLink accepts only paths of Redfish. A link is joined to the BMC's address, and any other
// text could lead to another host.
func validLink(path string) bool {
	if len(path) > maxLink || !strings.HasPrefix(path, "/redfish/") || strings.Contains(path, "..") {
		return false
	}
	return strings.IndexFunc(path, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || c == '\\' || c == '#' || c == '?'
	}) < 0
}

// reading is a number that may be missing, in watts.
type reading struct {
	watts float64
	known bool
}

const maxWatts = 1e6 // no host draws a megawatt

// UnmarshalJSON accepts a number, and a number in quotes. UnmarshalJSON stores null, zero and
// impossible values as unknown. Zero is unknown because a running host draws power.
func (r *reading) UnmarshalJSON(text []byte) error {
	v, err := strconv.ParseFloat(string(bytes.Trim(text, `"`)), 64)
	*r = reading{}
	if err == nil && v > 0 && v < maxWatts {
		*r = reading{v, true}
	}
	return nil
}

// text is a string; a value of another type becomes "".
type text string

func (t *text) UnmarshalJSON(b []byte) error {
	*t = text(lenient[string](b))
	return nil
}

// excerpt is a sensor inside another document: an object with a Reading.
type excerpt struct{ reading }

func (e *excerpt) UnmarshalJSON(b []byte) error {
	e.reading = lenient[struct{ Reading reading }](b).Reading
	return nil
}

// lax is a list. The list is empty if the value is no list, or has an element of another type.
type lax[T any] []T

func (l *lax[T]) UnmarshalJSON(b []byte) error {
	*l = lenient[[]T](b)
	return nil
}

type status struct{ State text }

func (s *status) UnmarshalJSON(b []byte) error {
	*s = status(lenient[struct{ State text }](b))
	return nil
}

// absent tells whether a power supply's slot is empty or switched off.
func (s status) absent() bool { return s.State == "Absent" || s.State == "Disabled" }

type rootDocument struct{ Chassis link }

type collectionDocument struct{ Members lax[link] }

type chassisDocument struct {
	ID                 text `json:"Id"`
	EnvironmentMetrics link
	PowerSubsystem     link
	Power              link
	Links              chassisLinks
}

type chassisLinks struct{ ContainedBy link }

func (l *chassisLinks) UnmarshalJSON(b []byte) error {
	*l = chassisLinks(lenient[struct{ ContainedBy link }](b))
	return nil
}

type environmentDocument struct{ PowerWatts excerpt }

type subsystemDocument struct{ PowerSupplies link }

type supplyDocument struct {
	Status  status
	Metrics link
}

type supplyMetricsDocument struct{ InputPowerWatts excerpt }

type powerDocument struct {
	PowerControl  lax[powerControl]
	PowerSupplies lax[powerSupply]
}

type powerControl struct {
	PhysicalContext    text
	PowerConsumedWatts reading
}

type powerSupply struct {
	Status          status
	PowerInputWatts reading
}

// chassis returns the power of the whole chassis. chassis uses the first control that is not a
// part's, since vendors append controls of CPUs and memory.
func (d *powerDocument) chassis() reading {
	for i := range d.PowerControl {
		c := &d.PowerControl[i]
		part := false
		for _, p := range []string{"CPU", "Memory", "GPU", "Accelerator", "Storage", "Fan", "NetworkingDevice",
			"PowerSupply"} {
			part = part || strings.HasPrefix(string(c.PhysicalContext), p)
		}
		if !part && c.PowerConsumedWatts.known {
			return c.PowerConsumedWatts
		}
	}
	return reading{}
}

// psu returns the sum of the supplies' inputs. The sum is unknown if one supply does not report its
// input.
func (d *powerDocument) psu() (sum reading) {
	for i := range d.PowerSupplies {
		s := &d.PowerSupplies[i]
		if s.Status.absent() {
			continue
		}
		if !s.PowerInputWatts.known {
			return reading{}
		}
		sum = reading{sum.watts + s.PowerInputWatts.watts, true}
	}
	return sum
}
