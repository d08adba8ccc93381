package main

// #include "glue.h"
import "C"

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"rallypoint/backend"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/store"
)

var adminDirectives = map[C.int32_t]rendezvous.DirectiveKind{
	C.RP_ADMIN_SAVE: rendezvous.DirectiveSave, C.RP_ADMIN_DRAIN: rendezvous.DirectiveDrain,
	C.RP_ADMIN_SCALE: rendezvous.DirectiveScale, C.RP_ADMIN_STOP: rendezvous.DirectiveStop,
}

type adminTexts struct{ endpoint, runID, reason, by, directive, tokenFile string }

// toAdmin converts a request; the event of one that changes nothing is nil.
func toAdmin(r *C.rp_admin_request) (a backend.Admin, ev rendezvous.Event, err error) {
	var t adminTexts
	err = texts(
		textField{"endpoint", r.endpoint, &t.endpoint},
		textField{"run_id", r.run_id, &t.runID},
		textField{"reason", r.reason, &t.reason},
		textField{"by", r.by, &t.by},
		textField{"directive", r.directive, &t.directive},
		textField{"token_file", r.token_file, &t.tokenFile},
	)
	if err != nil {
		return a, nil, err
	}
	nodes, err := rawTexts("nodes", r.nodes, r.nodes_len)
	if err != nil {
		return a, nil, err
	}
	if ev, err = t.event(r, nodes); err != nil {
		return a, nil, err
	}
	a.RunID, a.By = t.runID, t.by
	if a.At, err = backend.Locate(t.endpoint); err != nil {
		return a, nil, invalid("%v", err)
	}
	t.tokenFile = cmp.Or(t.tokenFile, getenv(params.EnvTokenFile))
	if t.tokenFile != "" {
		a.Token, err = secret.OpenToken(t.tokenFile, logger)
	}
	return a, ev, err
}

func (a *adminTexts) event(r *C.rp_admin_request, nodes []string) (rendezvous.Event, error) {
	if kind, ok := adminDirectives[r.action]; ok {
		return rendezvous.Direct{
			ID: a.directive, Kind: kind, Nodes: nodes, Within: span(r.within_ms), For: span(r.for_ms),
			Target: int(r.target), Reason: a.reason,
		}, nil
	}
	switch r.action {
	case C.RP_ADMIN_CANCEL:
		return rendezvous.CancelDirective{ID: a.directive, Reason: a.reason}, nil
	case C.RP_ADMIN_CLOSE, C.RP_ADMIN_FAIL:
		return rendezvous.CloseRun{Reason: a.reason, Stop: r.action == C.RP_ADMIN_FAIL}, nil
	case C.RP_ADMIN_FORGET:
		return rendezvous.Forget{Reason: a.reason}, nil
	case C.RP_ADMIN_STACKS, C.RP_ADMIN_STATUS, C.RP_ADMIN_LOGS:
		return nil, nil
	case C.RP_ADMIN_UNDRAIN, C.RP_ADMIN_EVICT, C.RP_ADMIN_CORDON:
	default:
		return nil, invalid("action is %d, which is none", int32(r.action))
	}
	if len(nodes) != 1 {
		return nil, invalid("there are %d nodes, it must be one", len(nodes))
	}
	switch r.action {
	case C.RP_ADMIN_EVICT:
		return rendezvous.Evict{Node: nodes[0], Reason: a.reason}, nil
	case C.RP_ADMIN_CORDON:
		return rendezvous.Cordon{Node: nodes[0], For: span(r.for_ms), Reason: a.reason}, nil
	}
	return rendezvous.Undrain{Node: nodes[0], Reason: a.reason}, nil
}

// span converts a time, which may be negative, to be refused where it is used.
func span(ms C.int64_t) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(max(-most, min(most, int64(ms)))) * time.Millisecond
}

//export rpgo_admin_start
func rpgo_admin_start(request *C.rp_admin_request, timeoutMS C.int64_t, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		a, ev, err := toAdmin(request)
		if err != nil {
			return err
		}
		if limit, ok := timeLimit(timeoutMS); ok {
			a.Timeout = limit
		}
		action, target := request.action, int(request.target)
		ctx, cancel := withTimeout(context.Background(), timeoutMS)
		*out = openHandle(newOp(ctx, cancel, func(ctx context.Context) (answer, error) {
			if ev == nil {
				return look(ctx, a, action, target)
			}
			done, err := a.Ask(ctx, ev)
			a := answer{op: store.OpGet, Reply: store.Reply{Values: [][]byte{[]byte(done.Text)}}}
			if done.Directive != "" {
				a.Keys = []string{done.Directive}
			}
			return a, asEnded(ctx, err)
		}))
		return nil
	})
}

// look asks what changes nothing, in JSON.
func look(ctx context.Context, a backend.Admin, action C.int32_t, target int) (answer, error) {
	var told any
	var err error
	switch action {
	case C.RP_ADMIN_STATUS:
		told, err = a.Status(ctx)
	case C.RP_ADMIN_LOGS:
		told, err = a.Logs(ctx, target)
	default:
		told, err = a.Stacks(ctx)
	}
	if err != nil {
		return answer{}, asEnded(ctx, err)
	}
	text, err := json.Marshal(told)
	return answer{op: store.OpGet, Reply: store.Reply{Values: [][]byte{text}}}, err
}

// asEnded is the error of a request, whose context may have ended it.
func asEnded(ctx context.Context, err error) error {
	switch ended := ctx.Err(); {
	case err == nil, ended == nil:
		return err
	case errors.Is(ended, context.DeadlineExceeded):
		return fmt.Errorf("%w%w", rendezvous.Errorf(rendezvous.CodeTimeout, ""), err)
	case errors.Is(err, rendezvous.ErrConnection): // else it was answered
		return fmt.Errorf("%w%w", rendezvous.Errorf(rendezvous.CodeCanceled, ""), err)
	}
	return err
}
