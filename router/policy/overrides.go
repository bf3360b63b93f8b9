package policy

// Overrides are a request's own values for settings of mode cost, and its targets for mode
// predicted. The zero value overrides nothing.
type Overrides struct {
	Targets Targets

	OverlapScoreCredit    Optional[float64]
	PrefillLoadScale      Optional[float64]
	Temperature           Optional[float64]
	SharedCacheMultiplier Optional[float64]
	AssumeKVReuse         Optional[bool]
	TrackPrefillTokens    Optional[bool]
	TrackActiveBlocks     Optional[bool]
}

// Optional is a value, or none.
type Optional[T any] struct {
	Value T
	Given bool
}

// Given returns an Optional with a value.
func Given[T any](v T) Optional[T] { return Optional[T]{Value: v, Given: true} }

// Or returns the value, or absent if there is none.
func (o Optional[T]) Or(absent T) T {
	if o.Given {
		return o.Value
	}
	return absent
}

// put replaces into by the value, if there is one.
func (o Optional[T]) put(into *T) {
	if o.Given {
		*into = o.Value
	}
}

func (o *Overrides) apply(c *CostSettings) {
	if *o == (Overrides{}) {
		return
	}
	o.OverlapScoreCredit.put(&c.OverlapScoreCredit)
	o.PrefillLoadScale.put(&c.PrefillLoadScale)
	o.Temperature.put(&c.Temperature)
	o.AssumeKVReuse.put(&c.AssumeKVReuse)
	o.TrackPrefillTokens.put(&c.TrackPrefillTokens)
	o.TrackActiveBlocks.put(&c.TrackActiveBlocks)
}
