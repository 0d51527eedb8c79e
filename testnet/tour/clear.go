package tour

import (
	"context"
	"errors"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/app"
)

// Clear deregisters the instances that the steps left: nothing answers at their addresses.
func (t *Tour) Clear(ctx context.Context) error {
	var all error
	for _, p := range t.Network.Living()[:min(1, len(t.Network.Living()))] {
		all = errors.Join(all, rest(ctx, p, clearAll))
	}
	return all
}

func clearAll(ctx context.Context, api *app.REST) error {
	var all error
	for _, service := range []string{web, resident, required, awaited} {
		list, err := api.Instances(ctx, service, true)
		all = errors.Join(all, err)
		for _, id := range list.IDs() {
			err := api.Deregister(ctx, service, id)
			if kind := fault.KindOf(err); err != nil && kind != fault.NotFound && kind != fault.Gone {
				all = errors.Join(all, fault.Wrap(service+"/"+id, err))
			}
		}
	}
	return all
}
