package tour

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/network"
)

// Check times of a server, and the effects of its end.
const (
	checkEvery   = time.Second
	checkTimeout = time.Second
	failures     = 3                // failures in a row until DOWN
	unhealthy    = 8 * time.Second  // without a passed check until UNHEALTHY
	deadAfter    = 10 * time.Second // without a passed check until removal
	late         = time.Minute      // allowance for a busy machine
)

// scene is an event of a watch, without the parts that depend on time.
type scene struct {
	what     string // ADDED, MODIFIED or DELETED
	status   string
	revision uint64
}

func (s scene) String() string { return strings.ToLower(s.what) + " " + s.status }

// watcher collects the events of a watch of a service without instances. Its goroutine ends with
// the context of the watch.
type watcher struct {
	peer   *network.Peer
	began  bool
	ready  chan struct{} // closed after the watch began
	scenes chan scene
	err    error // set before scenes is closed
}

// watchInstance starts a watch of a service in one of two ways. Both block until the watch ends.
func watchInstance(ctx context.Context, p *network.Peer, way func(*watcher, context.Context) error) *watcher {
	w := &watcher{peer: p, ready: make(chan struct{}), scenes: make(chan scene, 64)}
	go func() {
		defer close(w.scenes)
		w.err = way(w, ctx)
	}()
	return w
}

func (w *watcher) byGRPC(ctx context.Context) error {
	words := map[instance.EventType]string{instance.Added: "ADDED", instance.Modified: "MODIFIED", instance.Removed: "DELETED"}
	for b, err := range w.peer.Services().Watch(ctx, everything(web), 0) {
		if err == nil {
			err = w.begin(b.Reset, len(b.Events))
		}
		if err != nil {
			return err
		}
		for _, e := range b.Events {
			w.scenes <- scene{words[e.Type], e.Instance.Status.String(), e.Revision}
		}
	}
	return nil
}

func (w *watcher) bySSE(ctx context.Context) error {
	return w.peer.API.Watch(ctx, web, func(c app.Change) error {
		if err := w.begin(c.Reset, len(c.Instances)); err != nil {
			return err
		}
		for _, e := range c.Events {
			w.scenes <- scene{e.Type, e.Instance.Health, e.Revision}
		}
		return nil
	})
}

// begin accepts the first batch as the beginning. A later reset, or instances at the beginning,
// is a gap.
func (w *watcher) begin(reset bool, there int) error {
	if reset && (w.began || there > 0) {
		return fault.New(w.peer.Name, fault.Conflict, "the watch begins with %d instances, or anew", there)
	}
	if !w.began {
		w.began = true
		close(w.ready)
	}
	return nil
}

// until reads events until an instance is DOWN, and returns all of them.
func (w *watcher) until(ctx context.Context, what string, limit time.Duration) (seen []scene, err error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case s, open := <-w.scenes:
			if !open {
				return seen, fault.Wrap(w.peer.Name, w.err)
			}
			seen = append(seen, s)
			if s.what == what && s.status == "DOWN" {
				return seen, nil
			}
		case <-timer.C:
			return seen, fault.New(w.peer.Name, fault.Timeout, "nothing was %s and DOWN within %v; seen: %v", what, limit, seen)
		case <-ctx.Done():
			return seen, fault.Wrap(w.peer.Name, ctx.Err())
		}
	}
}

// instanceDies kills a server. Watchers at every other peer see ADDED, DOWN and removal, in
// revision order, in time, and without contradiction between watchers.
func instanceDies(ctx context.Context, t *Tour) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := app.Serve()
	if err != nil {
		return "", err
	}
	defer s.Die()
	home := t.consumer()
	var watchers []*watcher
	for _, p := range t.Network.Living() {
		if p != home {
			watchers = append(watchers, watchInstance(ctx, p, (*watcher).byGRPC), watchInstance(ctx, p, (*watcher).bySSE))
		}
	}
	for _, w := range watchers {
		select {
		case <-w.ready:
		case <-ctx.Done():
			return "", fault.New(w.peer.Name, fault.Timeout, "the watch does not begin: %w", ctx.Err())
		}
	}
	if err := register(ctx, home, web, checked(s)); err != nil {
		return "", err
	}
	if err := t.followAll(ctx, web, up); err != nil {
		return "", err
	}
	died := time.Now()
	s.Die()
	told, took, err := attend(ctx, watchers, died)
	if err != nil {
		return "", err
	}
	if err := alike(watchers, told); err != nil {
		return "", err
	}
	return fmt.Sprintf("DOWN %v and gone %v after its death; %d watches at other peers, by gRPC and SSE, agree: %v",
		took[0].Round(time.Millisecond), took[1].Round(time.Millisecond), len(watchers), told[0]), t.found(ctx, web)
}

// attend returns the events of each watcher, and the times until all had seen DOWN and the
// removal.
func attend(ctx context.Context, watchers []*watcher, died time.Time) (told [][]scene, took [2]time.Duration, err error) {
	told = make([][]scene, len(watchers))
	down := died.Add(failures*checkEvery + checkTimeout + late)
	gone := died.Add(deadAfter + late)
	for i, w := range watchers {
		if told[i], err = w.until(ctx, "MODIFIED", time.Until(down)); err != nil {
			return nil, took, err
		}
	}
	took[0] = time.Since(died)
	for i, w := range watchers {
		rest, err := w.until(ctx, "DELETED", time.Until(gone))
		if err != nil {
			return nil, took, err
		}
		told[i] = append(told[i], rest...)
	}
	took[1] = time.Since(died)
	return told, took, nil
}

// alike fails unless all watchers saw one history: each begins with the registration, continues
// by revisions, ends like the others, and agrees with the others at every revision. A watcher
// gets the last of several merged changes, and watchers may merge differently.
func alike(watchers []*watcher, told [][]scene) error {
	const op = "tour.alike"
	by, statuses := make(map[uint64]string), make(map[uint64]string) // by revision
	for i, scenes := range told {
		name := watchers[i].peer.Name
		for n, s := range scenes {
			if (n == 0) != (s.what == "ADDED") || n > 0 && s.revision <= scenes[n-1].revision {
				return fault.New(op, fault.Conflict, "%s saw %v: event %d is out of place", name, scenes, n+1)
			}
			if known, ok := statuses[s.revision]; ok && known != s.status {
				return fault.New(op, fault.Conflict, "at revision %d %s saw %s, and %s saw %s", s.revision, name, s.status, by[s.revision], known)
			}
			by[s.revision], statuses[s.revision] = name, s.status
		}
		if end, first := scenes[len(scenes)-1], told[0][len(told[0])-1]; end != first {
			return fault.New(op, fault.Conflict, "%s saw %v at last, and %s saw %v", name, end, watchers[0].peer.Name, first)
		}
	}
	return nil
}
