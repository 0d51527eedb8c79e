package tour

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/testnet/app"
)

// applicationMoves sends the heartbeat of an application of the killed peer to another peer,
// which adopts the instance.
func applicationMoves(ctx context.Context, t *Tour) (string, error) {
	victim, home := t.victim(), t.consumer()
	id, began := idOf(moves, victim), time.Now()
	err := rest(ctx, home, func(ctx context.Context, api *app.REST) error { return api.Heartbeat(ctx, resident, id) })
	if err != nil {
		return "", err
	}
	err = t.followAll(ctx, resident, func(r instance.Result) error {
		for _, i := range r.Instances {
			if i.ID == id && i.Peer == home.ID.String() {
				return includes(t.remaining())(r)
			}
		}
		return fault.New("tour.applicationMoves", fault.Conflict, "%s is not at %s", id, home.Name)
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s of %s sent its heartbeat to %s and was adopted, known everywhere after %v", id, victim.Name, home.Name,
		time.Since(began).Round(time.Millisecond)), nil
}

// peerForgotten waits until the instances of the killed peer leave with its lease. The moved
// instance stays, and so do the instances of other peers.
func peerForgotten(ctx context.Context, t *Tour) (string, error) {
	victim := t.victim()
	if err := t.followAll(ctx, resident, present(t.remaining()...)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s is gone %v after %s was killed, %s stays with %s", idOf(stays, victim),
		time.Since(t.bereft).Round(100*time.Millisecond), victim.Name, idOf(moves, victim), t.consumer().Name), nil
}

// remaining lists the residents without the one that leaves with the lease of the killed peer.
func (t *Tour) remaining() []string {
	return slices.DeleteFunc(slices.Clone(t.residents), func(id string) bool { return id == idOf(stays, t.victim()) })
}
