package directory

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// refusals makes the group of a peer refuse some commands.
type refusals struct {
	Group
	mu     sync.Mutex // guards refuse
	refuse func(*coordv1.Command) error
}

func (r *refusals) set(refuse func(*coordv1.Command) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = refuse
}

// Execute implements coord.Service.
func (r *refusals) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	r.mu.Lock()
	refuse := r.refuse
	r.mu.Unlock()
	if refuse != nil {
		if err := refuse(cmd); err != nil {
			return nil, err
		}
	}
	return r.Group.Execute(ctx, cmd)
}

// TestRefusedByTheGroup: while the group refuses the lease or the entries of a peer, whatever the cause, this peer lists its
// instances in their last state, follows those of others, says why nobody else finds them, and goes back afterwards.
func TestRefusedByTheGroup(t *testing.T) {
	full := fault.Exhausted("", "leases", false, "all 1000 leases are in use")
	for name, refuse := range map[string]func(*coordv1.Command) error{
		"no lease":   func(c *coordv1.Command) error { return when(c.GetLeaseGrant() != nil, full) },
		"no entries": func(c *coordv1.Command) error { return when(c.GetPublishInstances() != nil, full) },
		"one entry": func(c *coordv1.Command) error {
			for _, e := range c.GetPublishInstances().GetPuts() {
				if strings.Contains(string(e.GetKey()), "mine") {
					return fault.Exhausted("", "keys", false, "no room")
				}
			}
			return nil
		},
		"forbidden": func(c *coordv1.Command) error {
			return when(c.GetLeaseGrant() != nil, fault.New("", fault.Forbidden, "this peer is no friend"))
		},
		"silence": func(c *coordv1.Command) error {
			return when(c.GetLeaseGrant() != nil, fault.New("", fault.Unavailable, "the leader does not answer"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, c *cluster) {
				c.elect("leader")
				other, p := c.add("other"), c.add("new")
				r := &refusals{Group: p.Group, refuse: refuse}
				p.Group = r
				var mu sync.Mutex
				var told error
				p.Refused = func(err error) {
					mu.Lock()
					defer mu.Unlock()
					told = err
				}
				reason := func() error {
					mu.Lock()
					defer mu.Unlock()
					return told
				}
				other.Publish([]instances.Change{running("shop", "theirs")})
				other.Start()
				mine := running("shop", "mine")
				mine.Reason = instances.ReasonRegistered
				p.Publish([]instances.Change{mine})
				p.Start()
				time.Sleep(10 * time.Second)
				p.shows("shop", "mine", "theirs")
				other.shows("shop", "theirs")
				require.Error(t, reason())
				require.Equal(t, 1, p.Pending())
				require.Error(t, p.Uncommitted(mine.Key))
				require.NoError(t, p.Uncommitted(running("shop", "theirs").Key))
				_, _, err := p.Directory.Read(t.Context(), mine.Key.Name())
				require.ErrorIs(t, err, fault.Unavailable)

				other.Publish([]instances.Change{running("shop", "late")})
				down := *mine.Instance
				down.Status = instance.StatusDown
				p.Publish([]instances.Change{{Key: mine.Key, Instance: &down, Reason: instances.ReasonChecked}})
				time.Sleep(3 * time.Minute)
				p.shows("shop", "late", "mine", "theirs")
				i, ok := p.Catalog.ByLease(mine.Instance.Lease)
				require.True(t, ok)
				require.Equal(t, instance.StatusDown, i.Status)
				synctest.Wait()
				warned := strings.Count(p.log.String(), "the coordination group refuses instances of this peer")
				require.True(t, 3 <= warned && warned <= 4, "a line a minute: %d", warned)
				p.Publish([]instances.Change{{Key: mine.Key}, running("shop", "new")})
				time.Sleep(time.Second)

				r.set(nil)
				time.Sleep(time.Minute)
				p.shows("shop", "late", "new", "theirs")
				other.shows("shop", "late", "new", "theirs")
				require.NoError(t, reason())
				require.Zero(t, p.Pending())
				list, revision, err := p.Directory.Read(t.Context(), mine.Key.Name())
				require.NoError(t, err)
				require.Len(t, list, 3)
				found, err := p.Catalog.Discover(t.Context(), instance.Query{Name: mine.Key.Name(), Selector: instance.Selector{AnyStatus: true}})
				require.NoError(t, err)
				require.LessOrEqual(t, found.Revision, revision, "the numbering of the group again")
			})
		})
	}
}

func when(it bool, err error) error {
	if it {
		return err
	}
	return nil
}

// TestEndOfRefusedName: the end of a local instance whose name another peer has ends nothing of that peer's, not even for the
// moment until the next list of the directory.
func TestEndOfRefusedName(t *testing.T) {
	run(t, func(t *testing.T, c *cluster) {
		c.elect("leader")
		other, p := c.add("other"), c.add("new")
		p.Group = &refusals{Group: p.Group, refuse: func(c *coordv1.Command) error {
			return when(c.GetPublishInstances() != nil, fault.New("", fault.Forbidden, "this name is another caller's"))
		}}
		other.Publish([]instances.Change{running("shop", "theirs")})
		other.Start()
		p.Start()
		time.Sleep(10 * time.Second)
		p.shows("shop", "theirs")
		same := running("shop", "theirs")
		same.Instance.Lease = "another"
		p.Publish([]instances.Change{same})
		time.Sleep(time.Second)
		p.shows("shop", "theirs")
		p.Publish([]instances.Change{{Key: same.Key}})
		synctest.Wait()
		ids, _ := p.ids("shop")
		require.Equal(t, []string{"theirs"}, ids)
	})
}
