package power

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/common"
)

// candidate is a chassis that reports power.
type candidate struct {
	at, in link // at: the chassis' document; in: the document of the chassis around this chassis
	id     string
	plan   plan
}

// look finds the chassis of this host, and the documents with its power.
func (b *bmc) look() (*plan, error) {
	var root rootDocument
	var all collectionDocument
	if err := b.get(common.DefaultServiceRoot, &root); err != nil {
		return nil, err
	}
	if err := b.get(root.Chassis, &all); err != nil {
		return nil, err
	}
	if len(all.Members) > maxMembers {
		return nil, fmt.Errorf("the BMC has %d chassis; at most %d are looked at", len(all.Members), maxMembers)
	}
	around := map[link]link{}
	var found []candidate
	for _, at := range all.Members {
		c, err := b.consider(at)
		if errors.Is(err, errMissing) {
			continue
		}
		if err != nil {
			return nil, err
		}
		around[at] = c.in
		if b.config.Chassis == "" && c.plan.reports() || b.config.Chassis != "" && c.id == b.config.Chassis {
			found = append(found, c)
		}
	}
	return b.choose(found, around)
}

// choose removes each chassis that stands in another candidate, since the power of the outer
// chassis includes the inner one's. choose fails unless exactly one chassis is left.
func (b *bmc) choose(found []candidate, around map[link]link) (*plan, error) {
	var outer []candidate
	var ids []string
	for _, c := range found {
		if !within(c.at, found, around) {
			outer, ids = append(outer, c), append(ids, c.id)
		}
	}
	switch {
	case len(outer) == 1:
		p := outer[0].plan
		p.made = time.Now()
		return &p, nil
	case len(outer) > 1:
		return nil, fmt.Errorf("several chassis report power (%s); set power.redfish.chassis to this host's",
			strings.Join(ids, ", "))
	case b.config.Chassis != "":
		return nil, fmt.Errorf("the BMC has no chassis with the Id %q; correct power.redfish.chassis", b.config.Chassis)
	}
	return nil, errors.New("no chassis of the BMC reports power")
}

func within(at link, found []candidate, around map[link]link) bool {
	for range maxMembers { // bounds the walk if chassis contain each other in a ring
		if at = around[at]; at == "" {
			return false
		}
		for _, c := range found {
			if c.at == at {
				return true
			}
		}
	}
	return false
}

func (p *plan) reports() bool { return p.environment != "" || p.power != "" || len(p.supplies) > 0 }

// consider reads a chassis, and which of its documents report power now.
func (b *bmc) consider(at link) (candidate, error) {
	var doc chassisDocument
	if err := b.get(at, &doc); err != nil {
		return candidate{}, err
	}
	c := candidate{at: at, in: doc.Links.ContainedBy, id: string(doc.ID)}
	if c.in == at {
		c.in = ""
	}
	var env environmentDocument
	if err := b.optional(doc.EnvironmentMetrics, &env); err != nil {
		return c, err
	}
	if env.PowerWatts.known {
		c.plan.environment = doc.EnvironmentMetrics
	}
	supplies, err := b.supplies(doc.PowerSubsystem)
	if err != nil {
		return c, err
	}
	c.plan.supplies = supplies
	if c.plan.environment != "" && len(supplies) > 0 {
		return c, nil
	}
	var old powerDocument
	if err := b.optional(doc.Power, &old); err != nil {
		return c, err
	}
	if old.chassis().known || old.psu().known {
		c.plan.power = doc.Power
	}
	return c, nil
}

// supplies returns the links to the metrics of the supplies; none if a supply has no metrics.
func (b *bmc) supplies(at link) ([]link, error) {
	var subsystem subsystemDocument
	var all collectionDocument
	if err := b.optional(at, &subsystem); err != nil {
		return nil, err
	}
	if err := b.optional(subsystem.PowerSupplies, &all); err != nil {
		return nil, err
	}
	if len(all.Members) > maxSupplies {
		return nil, fmt.Errorf("%s has %d power supplies; at most %d are read", at, len(all.Members), maxSupplies)
	}
	var metrics []link
	for _, m := range all.Members {
		var s supplyDocument
		if err := b.optional(m, &s); err != nil {
			return nil, err
		}
		if s.Status.absent() {
			continue
		}
		if s.Metrics == "" {
			return nil, nil
		}
		metrics = append(metrics, s.Metrics)
	}
	return metrics, nil
}

// optional reads a document that may be missing.
func (b *bmc) optional(path link, into any) error {
	if path == "" {
		return nil
	}
	if err := b.get(path, into); !errors.Is(err, errMissing) {
		return err
	}
	return nil
}

// follow reads the documents of the plan. A figure of a newer schema takes precedence.
func (b *bmc) follow(p *plan) (chassis, psu reading, err error) {
	if p.environment != "" {
		var env environmentDocument
		if err := b.get(p.environment, &env); err != nil {
			return chassis, psu, err
		}
		chassis = env.PowerWatts.reading
	}
	psu.known = len(p.supplies) > 0
	for _, at := range p.supplies {
		var s supplyMetricsDocument
		if err := b.get(at, &s); err != nil {
			return chassis, reading{}, err
		}
		psu = reading{psu.watts + s.InputPowerWatts.watts, psu.known && s.InputPowerWatts.known}
	}
	if p.power == "" {
		return chassis, psu, nil
	}
	var old powerDocument
	if err := b.get(p.power, &old); err != nil {
		return chassis, psu, err
	}
	if !chassis.known {
		chassis = old.chassis()
	}
	if !psu.known {
		psu = old.psu()
	}
	return chassis, psu, nil
}
