package routing

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/leader"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// errNotSent is the refusal of a member that did not take a command.
var errNotSent = errors.New("does not lead")

// fakeMember is a member at another peer.
type fakeMember struct {
	Target
	execute func(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error)
}

func (m *fakeMember) Close() error { return nil }

func (m *fakeMember) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	if cmd.GetOpenClient() != nil {
		return &coordv1.Result{Response: &coordv1.Result_OpenClient{OpenClient: &apiv1.OpenClientResponse{Client: 1}}}, nil
	}
	return m.execute(ctx, cmd)
}

// fakeGroup is a group of peers, of which this peer is a client.
type fakeGroup struct {
	*Router
	members map[peer.ID]*fakeMember

	mu      sync.Mutex
	leads   leader.Leadership
	refused []string // owner and pool
}

func (g *fakeGroup) elect(term uint64, p peer.ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leads = leader.Leadership{Term: term, Peer: p}
}

// play runs a router in a bubble, with the members "a" and "b".
func play(t *testing.T, f func(t *testing.T, g *fakeGroup)) {
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		var work sync.WaitGroup
		g := &fakeGroup{members: map[peer.ID]*fakeMember{"a": {}, "b": {}}}
		g.Router = New(Config{
			Self: "self", Life: life, Jitter: func() float64 { return 0 },
			Start:  func(f func()) bool { work.Go(f); return true },
			Member: func() Member { return nil },
			Peers:  func() []peer.ID { return []peer.ID{"a", "b"} },
			Ask: func(context.Context, peer.ID) (leader.Leadership, bool) {
				g.mu.Lock()
				defer g.mu.Unlock()
				return g.leads, true
			},
			Dial:  func(to peer.ID) (Remote, error) { return g.members[to], nil },
			Group: func() string { return "group" },
			Exhausted: func(owner string, err error) {
				pool, _ := fault.PoolOf(err)
				g.refused = append(g.refused, owner+" "+pool)
			},
			Missing: func() string { return "a majority is needed" },
			Refused: func(err error) bool { return errors.Is(err, errNotSent) },
			Left:    func() (bool, int64) { return false, 0 },
		})
		work.Go(g.Run)
		f(t, g)
		end()
		work.Wait()
		require.NoError(t, g.Close())
	})
}

func unlock() *coordv1.Command { return coord.CommandOf("o", &apiv1.UnlockRequest{Name: "db"}) }

// TestRepeatedAtNextLeader: a command that the leader does not answer is repeated at the next one, under one identity.
func TestRepeatedAtNextLeader(t *testing.T) {
	play(t, func(t *testing.T, g *fakeGroup) {
		g.elect(1, "a")
		var seen []string
		g.members["a"].execute = func(_ context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
			seen = append(seen, cmd.GetAttempt().String())
			g.elect(2, "b")
			return nil, fault.New("test", fault.Unavailable, "broken")
		}
		g.members["b"].execute = func(_ context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
			seen = append(seen, cmd.GetAttempt().String())
			return &coordv1.Result{}, nil
		}
		_, err := g.Execute(t.Context(), unlock())
		require.NoError(t, err)
		require.Len(t, seen, 2)
		require.NotEmpty(t, seen[0])
		require.Equal(t, seen[0], seen[1])
	})
}

// TestExhausted: the peer hears of a command that found no room in a pool of the group, once, and of no other failure.
func TestExhausted(t *testing.T) {
	play(t, func(t *testing.T, g *fakeGroup) {
		g.elect(1, "a")
		for _, answer := range []error{fault.Exhausted("test", "leases", true, "full"), fault.New("test", fault.LimitReached, "busy"), nil} {
			g.members["a"].execute = func(context.Context, *coordv1.Command) (*coordv1.Result, error) { return &coordv1.Result{}, answer }
			_, err := g.Execute(t.Context(), coord.CommandOf("o", &apiv1.LeaseGrantRequest{TtlMs: 1}))
			require.ErrorIs(t, err, answer)
		}
		require.Equal(t, []string{"o leases"}, g.refused)
	})
}

// TestNoLeader: without a leader a call fails within its patience, and says what is missing.
func TestNoLeader(t *testing.T) {
	play(t, func(t *testing.T, g *fakeGroup) {
		began := time.Now()
		_, err := g.Execute(t.Context(), unlock())
		require.ErrorIs(t, err, fault.Unavailable)
		require.ErrorContains(t, err, "no_quorum: a majority is needed")
		require.LessOrEqual(t, time.Since(began), 5*time.Second)
		require.Positive(t, g.Leaderless())
	})
}

// TestWithoutIdentity: a command that cannot be repeated safely is sent again only if the member refused it.
func TestWithoutIdentity(t *testing.T) {
	play(t, func(t *testing.T, g *fakeGroup) {
		g.elect(1, "a")
		answers := []error{fault.As("test", fault.Unavailable, errNotSent), fault.New("test", fault.Unavailable, "broken"), nil}
		g.members["a"].execute = func(context.Context, *coordv1.Command) (*coordv1.Result, error) {
			err := answers[0]
			answers = answers[1:]
			return &coordv1.Result{}, err
		}
		_, err := g.Execute(t.Context(), coord.CommandOf("o", &apiv1.CloseClientRequest{Client: 7}))
		require.ErrorContains(t, err, "broken")
		require.Len(t, answers, 1)
	})
}

// TestClaimIsGivenBack: the claim of a caller that left is given back under its identity, and a claim under an identity of its
// caller is not.
func TestClaimIsGivenBack(t *testing.T) {
	for name, brought := range map[string]*apiv1.Attempt{"lent": nil, "brought": {Client: 9, Sequence: 3}} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, g *fakeGroup) {
				g.elect(1, "a")
				var released []int64
				attempts := map[string]int{}
				g.members["a"].execute = func(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
					if u := cmd.GetUnlock(); u != nil {
						released = append(released, u.GetFencingToken())
						return &coordv1.Result{}, nil
					}
					attempts[cmd.GetAttempt().String()]++
					if cmd.GetLock().GetTimeoutMs() < 0 {
						<-ctx.Done()
						return nil, fault.Wrap("test", ctx.Err())
					}
					return &coordv1.Result{Response: &coordv1.Result_Lock{Lock: &apiv1.LockResponse{Acquired: true, FencingToken: 5}}}, nil
				}
				ctx, leave := context.WithTimeout(t.Context(), time.Second)
				defer leave()
				cmd := coord.CommandOf("o", &apiv1.LockRequest{Name: "db", TimeoutMs: -1})
				cmd.Attempt = brought
				_, err := g.Execute(ctx, cmd)
				require.ErrorIs(t, err, fault.Timeout)
				synctest.Wait()
				assert.Len(t, attempts, 1)
				if brought != nil {
					require.Empty(t, released)
				} else {
					require.Equal(t, []int64{5}, released)
				}
			})
		})
	}
}
