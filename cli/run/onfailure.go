package run

func (c *config) setOnFailure(o *options, _ environ) error {
	fixed := ""
	if c.rendezvous.kind != kindDynamic {
		fixed = c.rendezvous.kind.String()
	}
	if err := c.spec.SetOnFailure(o.onFailure, fixed, c.rendezvous.params.Min, c.rendezvous.params.Max); err != nil {
		return usagef("argument --on-failure: %v", err)
	}
	return nil
}
