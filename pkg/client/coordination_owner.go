package client

import (
	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/pkg/coord"
)

// SpeakForOwners is an option of New for peers of a group, which pass on the calls of their applications: the
// owners of commands and keepalives travel with them. A peer refuses it from an application.
func SpeakForOwners() grpc.DialOption { return speakOption{} }

// speakOption is an option for New; gRPC ignores it.
type speakOption struct{ grpc.EmptyDialOption }

// visibleTo returns the restriction of a list. A peer restricts the lists of applications by itself.
func (p *Coordination) visibleTo(q coord.LeaseQuery) string {
	if !p.speaks {
		return ""
	}
	return q.VisibleTo
}
