package client

import (
	"github.com/blackhole/blackhole/pkg/coord"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// publish adds the directory state of the peers to the renewals of their leases.
func publish(renewals []coord.Renewal, published []*api.Publication) {
	for _, p := range published {
		for i := range renewals {
			if renewals[i].ID == coord.LeaseID(p.GetLeaseId()) {
				renewals[i].Published = &coord.Publication{
					Generation: p.GetGeneration(), Digest: coord.Digest{Count: int(p.GetCount()), High: p.GetHigh(), Low: p.GetLow()},
				}
			}
		}
	}
}
