package groups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
)

// backup saves the group of three peers under load, kills all, restores it at one of them, and lets the others return with
// empty disks. Tokens go on above all earlier ones. Keys are those of the backup.
func (r *run) backup(ctx context.Context) (span, error) {
	chosen, file := r.rng.IntN(voters), filepath.Join(r.dir, "group.backup")
	r.bridge = r.islands[0].Peers[0].Listen
	for _, step := range []func() error{
		func() error { return r.add(ctx) },
		func() error { return r.add(ctx) },
		func() error { return r.joined(ctx) },
		func() error { return await.Pause(ctx, r.span(0, 2*time.Second)) },
		func() error { return r.put(ctx, "app/saved") },
		func() error { return r.save(ctx, file) },
		func() error { return r.put(ctx, "app/later") },
		func() error { return await.Pause(ctx, r.span(0, 2*time.Second)) },
		func() error { return r.crashAll(chosen) },
		func() error { return r.restore(ctx, r.islands[chosen].Peers[0], file) },
		func() error { return r.revive(ctx, chosen) },
		func() error { return r.joined(ctx) },
	} {
		if err := step(); err != nil {
			return span{}, err
		}
	}
	return span{}, r.compare(ctx)
}

// joined waits for one group.
func (r *run) joined(ctx context.Context) error {
	_, err := r.one(ctx, nil)
	return err
}

func (r *run) put(ctx context.Context, key string) error {
	write := &coord.Txn{Then: []coord.Step{{Put: &coord.Put{Key: key, Value: []byte("kept")}}}}
	_, _, err := coord.OpsOf(r.islands[r.rng.IntN(len(r.islands))].Peers[0].Coordination()).Do(ctx, coord.Command{Op: write})
	return err
}

// save writes a backup from any peer.
func (r *run) save(ctx context.Context, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return fault.As("groups.save", fault.Invalid, err)
	}
	err = r.islands[r.rng.IntN(len(r.islands))].Peers[0].Coordination().Backup(ctx, f)
	return fault.As("groups.save", fault.Unavailable, errors.Join(err, f.Close()))
}

// crashAll kills all peers at once, and drops what all but one know of the group.
func (r *run) crashAll(chosen int) error {
	r.mu.Lock()
	clear(r.serves)
	r.mu.Unlock()
	for _, n := range r.islands {
		r.outcome.Killed++
		n.Peers[0].Kill()
	}
	for i, n := range r.islands {
		if i == chosen {
			continue
		}
		if err := os.RemoveAll(filepath.Join(n.Peers[0].Data, "coordination")); err != nil {
			return fault.As("groups.crashAll", fault.Unavailable, err)
		}
	}
	return nil
}

// restore replaces the group's state of an ended peer, by the command of docs/group.md.
func (r *run) restore(ctx context.Context, p *network.Peer, file string) error {
	out, err := exec.CommandContext(ctx, r.Binary, "group", "restore", file, "--data", p.Data, "--yes").CombinedOutput()
	if err != nil {
		return fault.New("groups.restore", fault.Unavailable, "%v: %s", err, out)
	}
	return nil
}

// revive starts the chosen peer, and then the others with it as bootstrap peer.
func (r *run) revive(ctx context.Context, chosen int) error {
	r.bridge = nil
	if err := r.start(ctx, chosen); err != nil {
		return err
	}
	r.bridge = r.islands[chosen].Peers[0].Listen
	for i := range r.islands {
		if i == chosen {
			continue
		}
		if err := r.start(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// compare expects the key from before the backup, and not the later one.
func (r *run) compare(ctx context.Context) error {
	page, _, err := coord.OpsOf(r.islands[0].Peers[0].Coordination()).Range(ctx, coord.Query{Span: coord.Under("app/")}, coord.Linearizable)
	if err != nil {
		return err
	}
	if len(page.Keys) != 1 || page.Keys[0].Key != "app/saved" {
		r.outcome.Violations = append(r.outcome.Violations, fmt.Sprintf("B1 after the restoration there are %d keys of applications, expected app/saved", len(page.Keys)))
	}
	return nil
}
