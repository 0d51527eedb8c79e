package nemesis

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/disk"
	"github.com/blackhole/blackhole/testnet/process"
)

// Bounds of the faults that take something away.
const (
	diskSize    = 256 << 20 // bytes of each peer's disk: history has at most 64 MB, and a snapshot is written beside the last one
	lossPart    = 0.3
	spareFiles  = 2       // descriptors that a starved peer may still open
	spareMemory = 4 << 20 // bytes that a starved peer may still map
	farthest    = 24 * time.Hour
)

// loseAll drops three of ten packets between all hosts, as a bad radio link does.
func loseAll(ctx context.Context, f *faults, _ victims) error {
	f.ground.Lose(lossPart)
	f.ends = append(f.ends, func() { f.ground.Lose(0) })
	f.trouble(f.rest()...)
	return await.Pause(ctx, f.outage())
}

// flapLink cuts the leader's link and mends it, faster than an election takes.
func flapLink(ctx context.Context, f *faults, v victims) error {
	rest := f.rest(v.leader)
	for until := f.now() + f.outage(); f.now() < until; {
		f.cut([]int{v.leader}, rest)
		f.cut(rest, []int{v.leader})
		if err := await.Pause(ctx, f.span(50*time.Millisecond, time.Second)); err != nil {
			return err
		}
		f.mend()
		if err := await.Pause(ctx, f.span(50*time.Millisecond, time.Second)); err != nil {
			return err
		}
	}
	return nil
}

// stepClock sets the clock of a voter to another time, before or after, and back.
func stepClock(ctx context.Context, f *faults, v victims) error {
	i := voter(f, v)
	f.trouble(i)
	data := f.net.Peers[i].Data
	offset := f.span(time.Minute, farthest)
	if f.rng.IntN(2) == 0 {
		offset = -offset
	}
	f.ends = append(f.ends, func() { f.must(process.SetClock(data, 0)) })
	return errors.Join(process.SetClock(data, offset), await.Pause(ctx, f.outage()))
}

// fillDisk takes all space from a voter. Its member stops, and the peer goes on.
func fillDisk(ctx context.Context, f *faults, v victims) error {
	i := voter(f, v)
	f.trouble(i)
	d := f.peers[i].disk
	f.ends = append(f.ends, func() { f.must(d.Free()) })
	return errors.Join(d.Fill(), await.Pause(ctx, f.outage()))
}

// starveOfFiles lets a voter open hardly any descriptor more: neither connections nor files.
func starveOfFiles(ctx context.Context, f *faults, v victims) error {
	i := voter(f, v)
	f.trouble(i)
	restore, err := f.net.Peers[i].LimitFiles(spareFiles)
	if err != nil {
		return err
	}
	f.ends = append(f.ends, func() { f.must(restore()) })
	return await.Pause(ctx, f.outage())
}

// starveOfMemory lets a voter map hardly any memory more. A Go program then ends, like one that the kernel kills for want
// of memory.
func starveOfMemory(ctx context.Context, f *faults, v victims) error {
	i := voter(f, v)
	f.trouble(i)
	p := f.net.Peers[i]
	restore, err := p.LimitMemory(spareMemory)
	if err != nil {
		return err
	}
	err = errors.Join(await.Pause(ctx, f.outage()), restore())
	if !p.Running() {
		f.say("%s ended without memory", p.Name)
		p.Kill() // it did not end by itself
	}
	return err
}

// must records a failure to end a fault. Later checks would blame the peers for it.
func (f *faults) must(err error) {
	if err != nil {
		f.violated("X2", "this program could not end a fault: %v", err)
	}
}

// mend ends all cuts.
func (f *faults) mend() {
	for _, c := range f.cuts {
		f.ground.Mend(c[0], c[1])
	}
	f.cuts = nil
}

// revive restarts peers whose member has stopped, as an operator does after the cause has gone.
func (f *faults) revive(ctx context.Context) error {
	for i, p := range f.net.Peers {
		if !p.Running() {
			continue
		}
		var status discovery.Status
		err := await.Until(ctx, f.Recovery, "status", func(ctx context.Context) (err error) { // a connection from before a pause fails once
			status, err = p.Status(ctx)
			return err
		})
		if ctx.Err() != nil {
			return fault.Wrap("nemesis.revive", ctx.Err())
		}
		if err != nil {
			f.violated("V1", "%s runs and does not tell its status: %v", f.peers[i].name, err)
			continue
		}
		stopped := func(c discovery.Condition) bool { return c.Name == "member_stopped" }
		if at := slices.IndexFunc(status.Conditions, stopped); at >= 0 {
			f.say("%s is restarted: %s", f.peers[i].name, status.Conditions[at].Message)
			p.Interrupt()
		}
	}
	return nil
}

// mount gives each peer a disk of its own, if this machine allows it.
func (r *run) mount() error {
	for _, p := range r.peers {
		data := filepath.Join(r.Dir, p.name)
		if err := os.Mkdir(data, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fault.As("nemesis.mount", fault.Unavailable, err)
		}
		var err error
		p.disk, err = disk.Mount(data, diskSize)
		if fault.KindOf(err) == fault.Unsupported {
			r.report.Skipped = append(r.report.Skipped, "full disks: "+err.Error())
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unmount removes the disks. Unless all checks held, their content stays.
func (r *run) unmount() {
	held := len(r.report.Checks) > 0 && len(r.report.Violations) == 0
	for _, p := range r.peers {
		if p == nil || p.disk == nil {
			continue
		}
		data := filepath.Join(r.Dir, p.name)
		if !held {
			if err := os.CopyFS(data+"-data", os.DirFS(data)); err != nil {
				r.say("the data of %s is not kept: %v", p.name, err)
			}
		}
		if err := p.disk.Close(); err != nil {
			r.say("a disk stays mounted: %v", err)
		}
		p.disk = nil
	}
}
