package agent

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/instance"
)

// ends remembers why instances of this peer ended. It is safe for concurrent use.
type ends struct {
	known *lru.Cache[instance.Key, instances.Removal] // bounded as the ends that the catalog remembers

	mu    sync.Mutex          // guards fresh
	fresh []instances.Removal // removals of silent instances that the log does not have yet; each call of Expire empties it
}

// add notes the end of an instance, whose last checks are given, newest first. It does not block.
func (e *ends) add(c instances.Change, checks []instances.LastCheck, now time.Time) {
	r := instances.Removal{Instance: c.Last, At: now.UTC(), Cause: "deregistered"}
	if len(checks) > 0 {
		r.LastCheck = &checks[0]
	}
	if c.Reason == instances.ReasonLost {
		r.Cause = fmt.Sprintf("no heartbeat came for %v", c.Last.Spec.RemoveAfter)
		if c.Last.Spec.Check != nil {
			r.Cause = fmt.Sprintf("neither a heartbeat nor a passed check came for %v", c.Last.Spec.RemoveAfter)
		}
		e.mu.Lock()
		e.fresh = append(e.fresh, r)
		e.mu.Unlock()
	}
	e.known.Add(c.Key, r)
}

// log writes one line for each removal of a silent instance.
func (e *ends) log(to *slog.Logger) {
	e.mu.Lock()
	fresh := e.fresh
	e.fresh = nil
	e.mu.Unlock()
	for _, r := range fresh {
		args := []any{"instance", r.Key.String(), "status", r.Status.String(), "cause", r.Cause}
		if r.LastCheck != nil && !r.LastCheck.Passing {
			args = append(args, "last_check", r.LastCheck.State+": "+r.LastCheck.Cause)
		}
		to.Info("removed a silent instance", args...)
	}
}

// Removed returns the instances of a service, of a namespace without a service, or of all for the zero name, that ended
// within the last hour and did not return, the last end first, at most catalog.MaxEnded of all namespaces. Their last checks are for operators.
func (s *Service) Removed(n instance.Name) []instances.Removal {
	list := s.reader.Ended(n)
	for at, r := range list {
		switch known, ok := s.ends.known.Peek(r.Key); {
		case r.Peer == directory.Outside:
			list[at].Cause = "deregistered, an outside service of Consul's API"
		case s.reader.foreign(r.Instance):
			list[at].Cause = fmt.Sprintf("it ended at its peer %s, which knows why, or that peer is gone", r.Peer)
		case ok && known.Lease == r.Lease:
			list[at].Cause, list[at].LastCheck = known.Cause, known.LastCheck
		default:
			list[at].Cause = "it ended while this peer had no contact to the group, or in an earlier process of it"
		}
	}
	return list
}
