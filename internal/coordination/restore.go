package coordination

import (
	"crypto/rand"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Restoration describes a group restored from a backup.
type Restoration struct {
	Group       string
	Incarnation uint64 // the new one
	Taken       time.Time
	Revision    coord.Revision // in the backup
	From        coord.Revision // later revisions and fencing tokens are above it
	Leases      int
	Locks       int
	Keys        int
	Peer        string // the only voter
	Done        bool
}

// RestoreConfig selects the backup and the data directory. See RecoverConfig.
type RestoreConfig struct {
	RecoverConfig
	Backup io.Reader
	Marks  string // as in Config
	// After is an incarnation that the group had since the backup, if the directory does not know it: 0, or the highest.
	After uint64
}

// Restore makes the peer of an unused data directory the only voter of the next incarnation of a backup's group, with the
// backup's state. The directory is a member's or a client's of that group, or new; then the peer must be eligible in the group's
// network. The revision leaps once for each incarnation since the backup, so no fencing token is granted twice.
//
// The backup is read completely before anything changes. Errors: Invalid or Unsupported, field "file", for a damaged or later
// file; Conflict if a peer uses the directory, or for another group's; Internal.
func Restore(c RestoreConfig) (r Restoration, err error) {
	const op = "coordination.Restore"
	if c.FS == nil {
		c.FS = vfs.Default
	}
	head, m, err := readBackup(c.Backup)
	if err != nil {
		return r, fault.Wrap(op, err)
	}
	first, err := bootstrap.DecodeMembership(head.Membership)
	if err != nil || first.GroupID().String() != head.Group {
		return r, fault.Wrap(op, fault.In("file", fault.New("", fault.Invalid, "the head of the backup is damaged: its membership is of another group")))
	}
	self, err := peer.IDFromPrivateKey(c.Key)
	if err != nil {
		return r, fault.As(op, fault.Invalid, err)
	}
	r = Restoration{
		Group: head.Group, Taken: head.Taken, Revision: m.Revision(), Leases: m.LeaseCount(), Locks: m.LockCount(), Keys: m.Len(), Peer: self.String(),
	}
	unlock, err := c.lock()
	if err != nil {
		return r, fault.Wrap(op, err)
	}
	if unlock != nil {
		defer release(unlock, &err)
	}
	return r, fault.Wrap(op, c.restore(&r, first, m))
}

// lock keeps a running peer and a restoration apart; nil for a directory that does not exist yet.
func (c *RestoreConfig) lock() (io.Closer, error) {
	dir := filepath.Join(c.Dir, "bootstrap")
	if _, err := c.FS.Stat(dir); err != nil {
		if !c.Commit {
			return nil, nil
		}
		if err := c.FS.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	unlock, err := bootstrap.Lock(c.FS, dir)
	if err != nil {
		return nil, fault.New("", fault.Conflict, "%s is in use: stop the peer first: %w", c.Dir, err)
	}
	return unlock, nil
}

// restore changes the directory under its lock, or with Commit false only looks.
func (c *RestoreConfig) restore(r *Restoration, first bootstrap.Membership, m *machine.Machine) (err error) {
	life, err := bootstrap.LoadRecovery(c.FS, c.Dir)
	if err != nil {
		return err
	}
	group := first.GroupID()
	if !life.IsZero() && life.Group != group {
		life = bootstrap.Recovery{}
	}
	known := max(c.After, m.Incarnation(), life.Incarnation)
	raft := filepath.Join(c.Dir, "raft")
	if _, e := c.FS.Stat(filepath.Join(raft, "log")); e != nil && !c.Commit {
		return r.leap(m, known, 0, 0)
	}
	disk, err := raftlog.Open(raftlog.Options{FS: c.FS, Dir: raft, Salvage: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer release(disk, &err)
	if disk.Group() != "" {
		had, err := incarnationOf(disk.Group())
		switch {
		case err != nil:
			return err
		case had.group != group:
			return fault.New("", fault.Conflict, "%s belongs to group %v, the backup to %v: use another directory", c.Dir, had.group, group)
		}
		known = max(known, had.recovery.Incarnation)
	}
	last, _ := disk.LastIndex() // neither it nor InitialState fails
	hard, _, _ := disk.InitialState()
	if err := r.leap(m, known, last, hard.GetTerm()); err != nil || !c.Commit {
		return err
	}
	return c.begin(r, first, disk, m)
}

// maxLeaps bounds the incarnations between a backup and its restoration: each takes 2^40 revisions of 2^63.
const maxLeaps = 1 << 12

// leap moves the state to the incarnation after known, behind the end of a log.
func (r *Restoration) leap(m *machine.Machine, known, last, seen uint64) error {
	if known-m.Incarnation() > maxLeaps {
		return fault.Invalidf("after", known, "must be at most %d above the backup's incarnation %d", maxLeaps, m.Incarnation())
	}
	index, term := m.Index()
	index, term = max(index, last), max(term, seen)+1
	for m.Incarnation() <= known {
		index++
		result, _ := m.Apply(index, term, &coordv1.Command{Request: &coordv1.Command_BumpIncarnation{
			BumpIncarnation: &coordv1.BumpIncarnation{Incarnation: m.Incarnation() + 1},
		}})
		if result.Err != nil {
			return result.Err
		}
	}
	r.Incarnation, r.From = m.Incarnation(), m.Revision()
	return nil
}

// begin writes the initial membership, for a directory without one, and then the new member in one step. A crash between both leaves a
// peer that waits for the group; the restoration can be repeated.
func (c *RestoreConfig) begin(r *Restoration, first bootstrap.Membership, disk *raftlog.Storage, m *machine.Machine) error {
	next, err := raftlog.NewMember(rand.Reader)
	if err != nil {
		return err
	}
	began, err := bootstrap.NewRecovery(c.Key, first.GroupID(), r.Incarnation, next)
	if err != nil {
		return err
	}
	place := bootstrap.DataDir{Dir: filepath.Join(c.Dir, "bootstrap"), Marks: c.Marks}
	if err := bootstrap.Adopt(c.FS, place, began.Peer, first); err != nil {
		return err
	}
	err = replica.Restore(disk, m, incarnation{first.GroupID(), began}.storageID(), replica.Member{ID: next, Peer: r.Peer})
	r.Done = err == nil
	return err
}
