package coordination

import (
	"context"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/coord"
)

// Locks returns one lock or a page of locks, with empty lists in place of none.
func Locks(ctx context.Context, c *client.Client, q coord.LockQuery) ([]coord.LockState, error) {
	states, _, err := coord.OpsOf(c.Coordination()).Locks(ctx, q)
	for i := range states {
		states[i].Holding, states[i].Waiting = term.Emptied(states[i].Holding), term.Emptied(states[i].Waiting)
	}
	return states, err
}

// Leases returns one lease with its keys, or a page of leases.
func Leases(ctx context.Context, c *client.Client, q coord.LeaseQuery) ([]coord.LeaseState, error) {
	states, _, err := coord.OpsOf(c.Coordination()).Leases(ctx, q)
	return states, err
}

// Keys returns a page of keys.
func Keys(ctx context.Context, c *client.Client, q coord.Query) (coord.Page, error) {
	page, _, err := coord.OpsOf(c.Coordination()).Range(ctx, q, coord.Linearizable)
	return page, err
}

func execute(ctx context.Context, c *client.Client, op *coord.Txn) (coord.Result, error) {
	result, _, err := coord.OpsOf(c.Coordination()).Do(ctx, coord.Command{Op: op})
	return result, err
}
