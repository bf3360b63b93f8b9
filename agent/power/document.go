package power

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// The parts that are read of Redfish's documents, as DMTF's schemas have them:
// EnvironmentMetrics and PowerSubsystem, and Power, which they replaced in 2020.
// Vendors differ: what has another type than the schema's is as if it were not
// there, and the rest of the document counts.

// link is a reference to another document.
type link string

func (l *link) UnmarshalJSON(text []byte) error {
	var r struct {
		ID string `json:"@odata.id"`
	}
	*l = ""
	if json.Unmarshal(text, &r) == nil && validLink(r.ID) {
		*l = link(r.ID)
	}
	return nil
}

const maxLink = 512

// validLink takes paths of Redfish only: a link is joined to the BMC's address,
// and what does not begin like one could lead to another host.
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

const maxWatts = 1e6 // a megawatt is no host

// UnmarshalJSON takes a number, and a number in quotes. Null, zero (a host that
// runs draws something) and what cannot be are unknown.
func (r *reading) UnmarshalJSON(text []byte) error {
	v, err := strconv.ParseFloat(string(bytes.Trim(text, `"`)), 64)
	*r = reading{}
	if err == nil && v > 0 && v < maxWatts {
		*r = reading{v, true}
	}
	return nil
}

// text is a string, "" where it is something else.
type text string

func (t *text) UnmarshalJSON(b []byte) error {
	var s string
	*t = ""
	if json.Unmarshal(b, &s) == nil {
		*t = text(s)
	}
	return nil
}

// excerpt is a sensor inside another document: an object with a Reading.
type excerpt struct{ reading }

func (e *excerpt) UnmarshalJSON(b []byte) error {
	var r struct{ Reading reading }
	*e = excerpt{}
	if json.Unmarshal(b, &r) == nil {
		e.reading = r.Reading
	}
	return nil
}

// lax is a list; one that is no list, or has an element of another kind, is empty.
type lax[T any] []T

func (l *lax[T]) UnmarshalJSON(b []byte) error {
	var list []T
	*l = nil
	if json.Unmarshal(b, &list) == nil {
		*l = list
	}
	return nil
}

type status struct{ State text }

func (s *status) UnmarshalJSON(b []byte) error {
	var r struct{ State text }
	*s = status{}
	if json.Unmarshal(b, &r) == nil {
		*s = status(r)
	}
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
	var r struct{ ContainedBy link }
	*l = chassisLinks{}
	if json.Unmarshal(b, &r) == nil {
		*l = chassisLinks(r)
	}
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

// chassis is the power of the whole chassis: of the first control that is not
// one of a part, since vendors append those of CPUs and memory.
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

// psu is what the supplies take in together; unknown where one does not tell.
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
