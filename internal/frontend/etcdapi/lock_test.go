package etcdapi_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi/v3electionpb"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi/v3lockpb"
)

func (f *front) lease(t *testing.T) int64 {
	t.Helper()
	r, err := f.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 600})
	require.NoError(t, err)
	return r.GetID()
}

// queued waits until the queue of a name has so many keys.
func (f *front) queued(t *testing.T, name string, keys int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		r, err := f.Range(t.Context(), &pb.RangeRequest{Key: []byte(name + "/"), RangeEnd: []byte(name + "0"), CountOnly: true})
		return err == nil && r.GetCount() == keys
	}, 30*time.Second, time.Millisecond)
}

// TestLock: one holds a lock, the next waits until the key goes, and a caller that leaves while it waits leaves no
// key.
func TestLock(t *testing.T) {
	f := start(t, nil)
	first, second := f.lease(t), f.lease(t)
	lock := func(ctx context.Context, lease int64) (string, error) {
		r, err := f.Lock(ctx, &v3lockpb.LockRequest{Name: []byte("jobs"), Lease: lease})
		return string(r.GetKey()), err
	}
	held, err := lock(t.Context(), first)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("jobs/%x", first), held, "as etcd's library concurrency names it")
	again, err := lock(t.Context(), first)
	require.NoError(t, err)
	require.Equal(t, held, again)

	next := make(chan string, 1)
	go func() {
		key, _ := lock(t.Context(), second)
		next <- key
	}()
	f.queued(t, "jobs", 2)
	impatient, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := lock(impatient, 0)
		left <- err
	}()
	f.queued(t, "jobs", 3)
	leave()
	require.Equal(t, codes.Canceled, status.Code(<-left))
	f.queued(t, "jobs", 2)
	require.Empty(t, next)

	_, err = f.Unlock(t.Context(), &v3lockpb.UnlockRequest{Key: []byte(held)})
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("jobs/%x", second), <-next)
	_, err = lock(t.Context(), 404)
	require.Equal(t, codes.NotFound, status.Code(err))

	b := base64.StdEncoding.EncodeToString([]byte("web"))
	require.Equal(t, http.StatusOK, f.post(t, "lock/lock", `{"name": "`+b+`"}`, "").code)
	f.queued(t, "web", 1)
}

// TestLockExpires: a key that goes while its caller waits is no lock.
func TestLockExpires(t *testing.T) {
	f := start(t, nil)
	first, second := f.lease(t), f.lease(t)
	held, err := f.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("jobs"), Lease: first})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := f.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("jobs"), Lease: second})
		ended <- err
	}()
	f.queued(t, "jobs", 2)
	_, err = f.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: second})
	require.NoError(t, err)
	_, err = f.Unlock(t.Context(), &v3lockpb.UnlockRequest{Key: held.GetKey()})
	require.NoError(t, err)
	require.ErrorContains(t, <-ended, "mutex: session is expired")
}

func TestElection(t *testing.T) {
	f := start(t, nil)
	name := []byte("chief")
	_, err := f.Leader(t.Context(), &v3electionpb.LeaderRequest{Name: name})
	require.ErrorContains(t, err, "election: no leader")
	seen, err := f.Observe(t.Context(), &v3electionpb.LeaderRequest{Name: name})
	require.NoError(t, err)
	observed := func() string {
		r, err := seen.Recv()
		require.NoError(t, err)
		return string(r.GetKv().GetValue())
	}
	campaign := func(lease int64, value string) (*v3electionpb.LeaderKey, error) {
		r, err := f.Campaign(t.Context(), &v3electionpb.CampaignRequest{Name: name, Lease: lease, Value: []byte(value)})
		return r.GetLeader(), err
	}
	lease := f.lease(t)
	a, err := campaign(lease, "a")
	require.NoError(t, err)
	require.Equal(t, "a", observed())
	_, err = campaign(lease, "a2")
	require.NoError(t, err)
	require.Equal(t, "a2", observed())
	next := make(chan *v3electionpb.LeaderKey, 1)
	go func() {
		b, _ := campaign(0, "b")
		next <- b
	}()
	f.queued(t, "chief", 2)
	_, err = f.Proclaim(t.Context(), &v3electionpb.ProclaimRequest{Leader: a, Value: []byte("a3")})
	require.NoError(t, err)
	require.Equal(t, "a3", observed())
	l, err := f.Leader(t.Context(), &v3electionpb.LeaderRequest{Name: name})
	require.NoError(t, err)
	require.Equal(t, "a3", string(l.GetKv().GetValue()))

	_, err = f.Resign(t.Context(), &v3electionpb.ResignRequest{Leader: a})
	require.NoError(t, err)
	b := <-next
	require.NotZero(t, b.GetLease())
	require.Equal(t, "b", observed())
	_, err = f.Proclaim(t.Context(), &v3electionpb.ProclaimRequest{Leader: a, Value: []byte("a4")})
	require.ErrorContains(t, err, "election: not leader")
	_, err = f.Resign(t.Context(), &v3electionpb.ResignRequest{})
	require.ErrorContains(t, err, `"leader" field must be provided`)
}
