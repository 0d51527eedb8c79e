package agent

import (
	"context"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/agent/directory"
	"github.com/blackhole/blackhole/internal/agent/registry"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Directory is the memory of the whole cluster, kept by the coordination group. What it has of this
// peer's instances it has from Publish alone; what it has of all it tells the Service's catalog.
type Directory interface {
	// Publish notes what runs here, in the order of the registry's changes, whose lock is held: it
	// neither blocks nor calls back. Of each key it keeps the last, and until that is committed also that
	// one since the last commit said Adopt.
	Publish(changes []directory.Change)
	// Committed waits until the directory has what was last published under a key, be it that nothing
	// runs there, and gives the revision. Errors: Unavailable at once while no leader is known; Conflict
	// when another peer had the last word on the key, until something is published under it again; those by
	// which the directory refuses the instance, of other kinds; Timeout, Canceled.
	Committed(ctx context.Context, k instance.Key) (revision uint64, err error)
	// Read gives what the directory surely has of a service now, through a quorum, or with no service of
	// the whole namespace, by key, and the revision of that answer. Each instance has the revision of
	// its last change. Errors: Unavailable, Timeout, Canceled.
	Read(ctx context.Context, n instance.Name) (list []*instance.Instance, revision uint64, err error)
}

// Peers reaches other peers' agents, as their Service.Direct: calls there are not passed on again.
type Peers interface {
	// At gives the agent of a peer. Errors: Unavailable when it cannot be reached; its own calls
	// may find that out later.
	At(peer string) (instance.Registrar, error)
}

// publish tells the directory what the registry says.
func (s *Service) publish(changes []registry.Change) {
	list := make([]directory.Change, len(changes))
	for n, c := range changes {
		list[n] = directory.Change{Key: c.Key, Instance: c.Instance, Adopt: c.Reason == registry.ReasonRegistered}
	}
	s.Directory.Publish(list)
}

// commit waits until the directory has what was last published under a key.
func (s *Service) commit(ctx context.Context, k instance.Key, wait time.Duration) (revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return s.Directory.Committed(ctx, k)
}

// settle is commit for a change that stands in any case: the directory has it before the answer if it can be
// had now, so that who reads after the answer sees it. It gives 0 when it cannot.
func (s *Service) settle(ctx context.Context, k instance.Key, wait time.Duration) (revision uint64) {
	if s.Directory == nil {
		return 0
	}
	revision, err := s.commit(ctx, k, wait)
	if err != nil {
		return 0
	}
	return revision
}

// Lost lets go of instances of which another peer had the last word: their application went there, or was
// deregistered there while this peer was away. Who still sends heartbeats is told, and registers anew. It
// waits for calls about them that are under way, and for the disk. One that was registered again since is left alone, for of
// that the directory has not had its say. The directory is told of what is removed as of any
// removal, and takes nothing from the other peer for it.
func (s *Service) Lost(keys []instance.Key) {
	each(len(keys), func(n int) {
		free, err := s.turns.take(s.ctx, keys[n])
		if err != nil {
			return // this peer closes
		}
		defer free()
		if _, err := s.commit(s.ctx, keys[n], s.CommitWait); fault.KindOf(err) == fault.Conflict {
			s.drop(keys[n])
		}
	})
}

// drop removes an instance that is another peer's, or to be.
func (s *Service) drop(k instance.Key) {
	if _, err := s.registry.Deregister(k, s.Now()); err != nil && fault.KindOf(err) != fault.NotFound {
		s.Recorder.Failed("agent.drop", err)
	}
}

// together bounds how many wait for the disk at once. They share its commits.
const together = 64

// each calls do for 0 to n-1, some at a time, and waits for all.
func each(n int, do func(int)) {
	var work sync.WaitGroup
	free := make(chan struct{}, together)
	for i := range n {
		free <- struct{}{}
		work.Go(func() {
			do(i)
			<-free
		})
	}
	work.Wait()
}

// turns has those who change one key wait for each other, so that what is undone is one's own. The
// zero value is ready.
type turns struct {
	mu   sync.Mutex                     // guards busy
	busy map[instance.Key]chan struct{} // closed when it is free
}

// take waits for a key and gives the function that frees it. Errors: Timeout, Canceled.
func (t *turns) take(ctx context.Context, k instance.Key) (free func(), err error) {
	for {
		t.mu.Lock()
		wait := t.busy[k]
		if wait == nil {
			if t.busy == nil {
				t.busy = make(map[instance.Key]chan struct{})
			}
			t.busy[k] = make(chan struct{})
			t.mu.Unlock()
			return func() { t.free(k) }, nil
		}
		t.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fault.Wrap("", ctx.Err())
		}
	}
}

func (t *turns) free(k instance.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.busy[k])
	delete(t.busy, k)
}

// commitWait is the default of Config.CommitWait.
const commitWait = 5 * time.Second
