package run

import "rallypoint/agent"

func (c *config) setDirectives(o *options) (err error) {
	if o.directiveSignal != "" {
		if c.spec.DirectiveSignal, err = agent.ParseSignal(o.directiveSignal); err != nil {
			return usagef("argument --directive-signal: %v", err)
		}
	}
	if c.spec.DrainTimeout, err = seconds("--drain-timeout", o.drainTimeout, true); err != nil {
		return err
	}
	if o.onSignal == "" {
		return nil
	}
	if c.spec.OnSignal, err = agent.ParseOnSignal(o.onSignal); err != nil {
		return usagef("argument --on-signal: %v", err)
	}
	return nil
}
