package agent

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// forwardTimeout bounds a call to another peer. That peer waits at most half of
// it for the directory.
const forwardTimeout = 2 * time.Second

// forwarder carries calls to the peers that answer for their instances.
type forwarder struct {
	local  *local
	reader *reader
}

// anywhere calls here, and for an instance of another peer there. If that peer
// does not answer, this one adopts the instance and calls here again. A call
// that ends the instance needs the commit of the adoption first: the directory
// remembers removals by the owner alone, and the silent peer still has the
// instance on its disk and would publish it again.
func (f *forwarder) anywhere(ctx context.Context, k instance.Key, ends bool, here func() error, there func(context.Context, instances.Registrar) error) error {
	err := here()
	if f.local.directory == nil || fault.KindOf(err) != fault.NotFound {
		return err
	}
	i, blind := f.reader.elsewhere(k)
	switch {
	case i == nil && blind != "":
		return fault.New("agent.forward", fault.Unavailable, "this peer has no such instance, and cannot see whether another peer has one (%s): retry later", blind)
	case i == nil:
		return err
	}
	err = f.call(ctx, i.Peer, there)
	if !unanswered(ctx, err) {
		return err
	}
	if err := f.local.adopt(ctx, i, err); err != nil {
		return err
	}
	if f.local.settle(ctx, k, commitWait) == 0 && ends {
		f.local.drop(k)
		return fault.New("agent.adopt", fault.Unavailable, "peer %s does not answer, and the directory has no leader to move its instance: retry later", i.Peer)
	}
	return here()
}

// call calls the agent of another peer.
func (f *forwarder) call(ctx context.Context, peer string, do func(context.Context, instances.Registrar) error) error {
	if peer == directory.Outside {
		return fault.New("agent.call", fault.Unprocessable, "no peer answers for the instance: change it where it was registered, as an outside service of Consul's API")
	}
	if f.local.config.Peers == nil {
		return fault.New("agent.call", fault.Unavailable, "this peer cannot reach other peers")
	}
	to, err := f.local.config.Peers.At(peer)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	return do(ctx, to)
}

// unanswered reports whether a call failed for lack of an answer while the caller
// still waited.
func unanswered(ctx context.Context, err error) bool {
	kind := fault.KindOf(err)
	return ctx.Err() == nil && err != nil && (kind == fault.Unavailable || kind == fault.Timeout)
}

// peerBatch is a batch of heartbeats for instances of one peer.
type peerBatch struct {
	refs      []instances.Ref
	positions []int // in the request
	known     []*instance.Instance
}

// heartbeats forwards the failed beats to the peers of their instances, all peers
// at once, and replaces them by the answers.
func (f *forwarder) heartbeats(ctx context.Context, refs []instances.Ref, beats []instances.Beat) {
	batches := make(map[string]*peerBatch)
	for n := range beats {
		if beats[n].Err == nil {
			continue
		}
		i, ref := f.locate(refs[n])
		if i == nil {
			continue
		}
		b := batches[i.Peer]
		if b == nil {
			b = new(peerBatch)
			batches[i.Peer] = b
		}
		b.refs, b.positions, b.known = append(b.refs, ref), append(b.positions, n), append(b.known, i)
	}
	peers := slices.Sorted(maps.Keys(batches))
	parallel(len(peers), func(n int) {
		b := batches[peers[n]]
		for at, beat := range f.send(ctx, peers[n], b) {
			beats[b.positions[at]] = beat
		}
	})
}

// locate returns the instance of another peer named by ref, and the ref for that
// peer; nil if unknown.
func (f *forwarder) locate(ref instances.Ref) (*instance.Instance, instances.Ref) {
	if ref.Lease == "" {
		i, _ := f.reader.elsewhere(ref.Key.WithDefaults())
		return i, ref
	}
	if i, ok := f.reader.ByLease(ref.Lease); ok && f.reader.foreign(i) {
		return i, ref
	}
	if k, ok := f.local.aliases.Get(ref.Lease); ok {
		i, _ := f.reader.elsewhere(k)
		return i, instances.Ref{Key: k}
	}
	return nil, ref
}

// send returns the beats of a batch. Without an answer this peer adopts the
// instances and renews them itself.
func (f *forwarder) send(ctx context.Context, peer string, b *peerBatch) []instances.Beat {
	var beats []instances.Beat
	err := f.call(ctx, peer, func(ctx context.Context, to instances.Registrar) (err error) {
		beats, err = to.Heartbeat(ctx, b.refs)
		if err == nil && len(beats) != len(b.refs) {
			err = fault.New("agent.Heartbeat", fault.Internal, "peer %s answered %d of %d heartbeats", peer, len(beats), len(b.refs))
		}
		return err
	})
	if err == nil {
		return beats
	}
	silent := unanswered(ctx, err)
	beats = make([]instances.Beat, len(b.refs))
	parallel(len(beats), func(n int) {
		failed := err
		if silent {
			failed = f.local.adopt(ctx, b.known[n], err)
		}
		if failed == nil {
			beats[n] = f.local.beatOne(b.known[n].Key)
			return
		}
		beats[n] = instances.Beat{Key: b.known[n].Key, Lease: b.known[n].Lease, At: f.local.config.Now().Round(0).UTC(), Err: failed}
	})
	return beats
}
