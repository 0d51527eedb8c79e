// Package robustness checks a group of three peers, whose leaders are killed, by etcd's own model of itself.
package robustness

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"go.etcd.io/etcd/tests/v3/framework/integration"
	"go.etcd.io/etcd/tests/v3/robustness/identity"
	"go.etcd.io/etcd/tests/v3/robustness/model"
)

const (
	callers  = 8
	answered = 3 * time.Second  // longest wait for an answer; a later one can have had its effect
	downFor  = 2 * time.Second  // of a killed leader
	calm     = 5 * time.Second  // before the next kill
	ready    = 60 * time.Second // of a peer that starts
	trail    = 2000             // revisions behind which history is compacted: a watch whose peer is killed lags by less
)

// peer is one of the group.
type peer struct {
	t                      *testing.T
	data, etcd, http, grpc string
	listen, first          string // first: where the others find the first peer
	run                    *exec.Cmd
}

func free(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func (p *peer) start() {
	args := []string{
		"run", "--network", "robustness", "--data", p.data, "--http", p.http, "--grpc", p.grpc, "--dns", "off", "--listen", p.listen,
	}
	if p.first != "" {
		args = append(args, "--bootstrap", p.first)
	}
	p.run = exec.Command(os.Getenv(integration.ProgramOf), args...)
	p.run.Env = append(os.Environ(), "BLACKHOLE_ETCD_LISTEN="+p.etcd)
	require.NoError(p.t, p.run.Start())
	require.Eventually(p.t, func() bool {
		answer, err := http.Get("http://" + p.http + "/readyz")
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	}, ready, 50*time.Millisecond)
}

func (p *peer) kill() {
	_ = p.run.Process.Kill()
	_ = p.run.Wait()
}

// group starts three peers, and waits until all of them are members.
func group(t *testing.T) []*peer {
	var all []*peer
	for n := range 3 {
		_, port, err := net.SplitHostPort(free(t))
		require.NoError(t, err)
		p := &peer{
			t: t, data: filepath.Join(t.TempDir(), fmt.Sprint(n)), etcd: free(t), http: free(t), grpc: free(t), listen: "/ip4/127.0.0.1/tcp/" + port,
		}
		if n > 0 {
			p.first = all[0].first
		}
		p.start()
		t.Cleanup(p.kill)
		if n == 0 {
			out, err := exec.Command(os.Getenv(integration.ProgramOf), "status", "--grpc", p.grpc, "-o", "json").Output()
			require.NoError(t, err)
			at := bytes.Index(out, []byte(p.listen+"/p2p/"))
			require.Positive(t, at, string(out))
			p.first, _, _ = strings.Cut(string(out[at:]), `"`)
		}
		all = append(all, p)
	}
	require.Eventually(t, func() bool {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{all[0].etcd}, DialTimeout: answered, Logger: zap.NewNop()})
		if err != nil {
			return false
		}
		defer c.Close()
		list, err := c.MemberList(t.Context())
		return err == nil && len(list.Members) == len(all)
	}, 2*ready, time.Second)
	return all
}

// leader finds the leader of a group; nil: nobody says that it leads.
func leader(ctx context.Context, all []*peer) *peer {
	for _, p := range all {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{p.etcd}, DialTimeout: answered, Logger: zap.NewNop()})
		if err != nil {
			continue
		}
		status, err := c.Status(ctx, p.etcd)
		c.Close()
		if err == nil && status.Leader == status.Header.MemberId {
			return p
		}
	}
	return nil
}

func keys() []string { return []string{"key0", "key1", "key2", "key3", "key4", "key5"} }

// caller makes calls, one after the other.
type caller struct {
	*clientv3.Client
	ids     identity.Provider
	history *model.AppendableHistory
	base    time.Time
	rng     *rand.Rand
	failed  int
}

// call makes one call.
func (c *caller) call(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answered)
	defer cancel()
	key, value := keys()[c.rng.IntN(len(keys()))], fmt.Sprint(c.ids.NewRequestID()) // each value is put once
	start := time.Since(c.base)
	switch n := c.rng.IntN(100); {
	case n < 25:
		r, err := c.Put(ctx, key, value)
		c.history.AppendPut(key, value, start, time.Since(c.base), r, err)
		return err
	case n < 45:
		r, err := c.Get(ctx, key)
		c.history.AppendRange(key, "", 0, 0, false, start, time.Since(c.base), r, err)
		return err
	case n < 60:
		r, err := c.Get(ctx, "key", clientv3.WithPrefix())
		c.history.AppendRange("key", clientv3.GetPrefixRangeEnd("key"), 0, 0, false, start, time.Since(c.base), r, err)
		return err
	case n < 70:
		r, err := c.Delete(ctx, key)
		c.history.AppendDelete(key, start, time.Since(c.base), r, err)
		return err
	case n < 90: // compare and set, of what a read found
		r, err := c.Get(ctx, key)
		c.history.AppendRange(key, "", 0, 0, false, start, time.Since(c.base), r, err)
		if err != nil {
			return err
		}
		at := int64(0)
		if len(r.Kvs) > 0 {
			at = r.Kvs[0].ModRevision
		}
		while, then := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", at)}, []clientv3.Op{clientv3.OpPut(key, value), clientv3.OpGet(key)}
		otherwise := []clientv3.Op{clientv3.OpGet(key)}
		start = time.Since(c.base)
		tr, err := c.Txn(ctx).If(while...).Then(then...).Else(otherwise...).Commit()
		c.history.AppendTxn(while, then, otherwise, start, time.Since(c.base), tr, err)
		return err
	default: // the end of a lease deletes its key
		g, err := c.Grant(ctx, 3600)
		c.history.AppendLeaseGrant(start, time.Since(c.base), g, err)
		if err != nil {
			return err
		}
		start = time.Since(c.base)
		p, err := c.Put(ctx, key, value, clientv3.WithLease(g.ID))
		c.history.AppendPutWithLease(key, value, int64(g.ID), start, time.Since(c.base), p, err)
		if err != nil {
			return err
		}
		start = time.Since(c.base)
		r, err := c.Revoke(ctx, g.ID)
		c.history.AppendLeaseRevoke(int64(g.ID), start, time.Since(c.base), r, err)
		return err
	}
}

// seen is what a watch of all keys has told.
type seen struct {
	mu        sync.Mutex
	revisions []int64          // with changes, ascending
	puts      map[string]int64 // revision by value
	wrong     error
}

func (s *seen) take(r clientv3.WatchResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range r.Events {
		if at := e.Kv.ModRevision; len(s.revisions) == 0 || s.revisions[len(s.revisions)-1] < at {
			s.revisions = append(s.revisions, at)
		} else if s.revisions[len(s.revisions)-1] > at {
			s.wrong = fmt.Errorf("a change of revision %d came after one of %d", at, s.revisions[len(s.revisions)-1])
		}
		if e.Type == clientv3.EventTypePut {
			if was, twice := s.puts[string(e.Kv.Value)]; twice {
				s.wrong = fmt.Errorf("the put of %s has taken effect twice: at %d and %d", e.Kv.Value, was, e.Kv.ModRevision)
			}
			s.puts[string(e.Kv.Value)] = e.Kv.ModRevision
		}
	}
}

func (s *seen) last() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revisions[len(s.revisions)-1]
}

// number translates a revision into that of etcd with these changes alone: here other users of the group raise revisions too. An empty store of
// etcd has revision 1.
func (s *seen) number(revision int64) int64 {
	if revision <= 0 {
		return revision
	}
	n, is := slices.BinarySearch(s.revisions, revision)
	if is {
		n++
	}
	return int64(1 + n)
}

// settled translates the revisions of an operation, and says what the watch knows of the effect of a failed one. false: it has had none that matters.
func (s *seen) settled(op porcupine.Operation) (porcupine.Operation, bool) {
	in, out := op.Input.(model.EtcdRequest), op.Output.(model.MaybeEtcdResponse)
	if out.Error != "" {
		op.Return = math.MaxInt64 // it may have its effect later
	}
	if in.Txn != nil && out.Txn != nil && !out.Txn.Failure {
		for _, o := range in.Txn.OperationsOnSuccess {
			if at := s.puts[o.Put.Value.Value]; o.Type == model.PutOperation && at != out.Revision {
				s.wrong = fmt.Errorf("the put of %s says revision %d, a watch says %d", o.Put.Value.Value, out.Revision, at)
			}
		}
	}
	header := out.Revision
	out.Revision = s.number(out.Revision)
	ranges := func(kvs []model.KeyValue) {
		for i := range kvs {
			if kvs[i].ModRevision > header {
				s.wrong = fmt.Errorf("a read at revision %d has %s of revision %d", header, kvs[i].Key, kvs[i].ModRevision)
			}
			kvs[i].ModRevision = s.number(kvs[i].ModRevision)
		}
	}
	if out.Range != nil {
		ranges(out.Range.KVs)
	}
	if out.Txn != nil {
		for _, r := range out.Txn.Results {
			ranges(r.KVs)
		}
	}
	keep := out.Error == "" || !in.IsRead()
	if in.Txn != nil {
		for i := range in.Txn.Conditions {
			in.Txn.Conditions[i].ExpectedRevision = s.number(in.Txn.Conditions[i].ExpectedRevision)
		}
		for _, o := range in.Txn.OperationsOnSuccess {
			if o.Type == model.PutOperation && out.Error != "" {
				at, put := s.puts[o.Put.Value.Value]
				if keep = put; put {
					out = model.MaybeEtcdResponse{Persisted: true, PersistedRevision: s.number(at)}
				}
			}
		}
	}
	op.Input, op.Output, op.Metadata = in, out, out
	return op, keep
}

// TestKills: a history of concurrent calls at a group whose leaders are killed is one of etcd.
func TestKills(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("ETCD_ROBUSTNESS"))
	require.NoError(t, err, "ETCD_ROBUSTNESS needs a duration")
	all := group(t)
	var endpoints []string
	for _, p := range all {
		endpoints = append(endpoints, p.etcd)
	}
	dial := func() *clientv3.Client {
		c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: answered, DialKeepAliveTime: answered, DialKeepAliveTimeout: answered, Logger: zap.NewNop()})
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	watcher := dial()
	present, err := watcher.Get(t.Context(), "key", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Zero(t, present.Count)
	s := &seen{puts: map[string]int64{}}
	watching := watcher.Watch(t.Context(), "key", clientv3.WithPrefix(), clientv3.WithRev(present.Header.Revision+1))
	told := make(chan error, 1)
	go func() {
		for r := range watching {
			if r.Err() != nil {
				told <- r.Err()
				return
			}
			s.take(r)
		}
		told <- errors.New("the client has closed it")
	}()

	ids, base := identity.NewIDProvider(), time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var running sync.WaitGroup
	var every []*caller
	for n := range callers {
		c := &caller{Client: dial(), ids: ids, history: model.NewAppendableHistory(ids), base: base, rng: rand.New(rand.NewPCG(uint64(base.UnixNano()), uint64(n)))}
		every = append(every, c)
		running.Go(func() {
			for ctx.Err() == nil {
				if c.call(t.Context()) != nil {
					c.failed++
				}
				time.Sleep(time.Duration(c.rng.IntN(50)) * time.Millisecond) // the model needs time too
			}
		})
	}
	compactions, compacting := 0, dial()
	running.Go(func() {
		for ctx.Err() == nil {
			if now, err := compacting.Get(ctx, "key0"); err == nil && now.Header.Revision > trail {
				if _, err := compacting.Compact(ctx, now.Header.Revision-trail); err == nil {
					compactions++
				}
			}
			time.Sleep(time.Second)
		}
	})
	kills := 0
	for ctx.Err() == nil {
		if p := leader(ctx, all); p != nil {
			p.kill()
			kills++
			time.Sleep(downFor)
			p.start()
		}
		select {
		case <-time.After(calm):
		case <-ctx.Done():
		}
	}
	running.Wait()

	// The watch knows all effects as soon as it has told one that came after them.
	end, err := watcher.Put(t.Context(), "key-end", "end")
	require.NoError(t, err)
	for began := time.Now(); s.last() < end.Header.Revision; {
		select {
		case err := <-told:
			require.NoError(t, err, "the watch ended")
		case <-time.After(10 * time.Millisecond):
			require.Less(t, time.Since(began), time.Minute, "the watch has told changes up to %d, but not that of %d", s.last(), end.Header.Revision)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var history []porcupine.Operation
	total, failed := 0, 0
	for _, c := range every {
		failed += c.failed
		for _, op := range c.history.Operations() {
			total++
			if op, ok := s.settled(op); ok {
				history = append(history, op)
			}
		}
	}
	require.NoError(t, s.wrong)
	began := time.Now()
	etcd := model.NonDeterministicModel(keys())
	if len(s.revisions) > 2*trail {
		require.Positive(t, compactions)
	}
	result, info := porcupine.CheckOperationsVerbose(etcd, history, 5*time.Minute)
	t.Logf("%d kills of the leader and %d compactions in %v: %d operations, %d calls failed, %d changes; the model of etcd says %s after %v",
		kills, compactions, length, total, failed, len(s.revisions), result, time.Since(began).Round(time.Millisecond))
	if result == porcupine.Illegal {
		tell(t, etcd, history, info)
	}
	require.Equal(t, porcupine.Ok, result)
}

// tell shows where the longest order of operations that the model allows ends.
func tell(t *testing.T, etcd porcupine.Model, history []porcupine.Operation, info porcupine.LinearizationInfo) {
	var longest []porcupine.Operation
	for _, some := range info.PartialLinearizationsOperations() {
		for _, list := range some {
			if len(list) > len(longest) {
				longest = list
			}
		}
	}
	show := func(what string, op porcupine.Operation) {
		t.Logf("%s: %v to %v: %s", what, time.Duration(op.Call), time.Duration(op.Return), etcd.DescribeOperation(op.Input, op.Output))
	}
	type id struct{ client, call int64 }
	placed, some := map[id]bool{}, 10
	for n, op := range longest {
		placed[id{int64(op.ClientId), op.Call}] = true
		if n >= len(longest)-some {
			show("in order", op)
		}
	}
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	for _, op := range history {
		if !placed[id{int64(op.ClientId), op.Call}] && some > 0 {
			some--
			show("without a place", op)
		}
	}
}
