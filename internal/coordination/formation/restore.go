package formation

import (
	"io"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/replica"
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
	Commit bool // false only describes the restoration
	Backup io.Reader
	Marks  string // directory of the identity key
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
	d := c.dir()
	d.Marks = c.Marks
	if _, e := d.FS.Stat(d.Bootstrap().Dir); e == nil || c.Commit {
		if err := d.FS.MkdirAll(d.Bootstrap().Dir, 0o700); err != nil {
			return r, fault.Wrap(op, err)
		}
		unlock, e := d.lock()
		if e != nil {
			return r, fault.Wrap(op, e)
		}
		defer release(unlock, &err)
	}
	return r, fault.Wrap(op, c.restore(d, &r, first, m))
}

// restore changes the directory under its lock, or with Commit false only looks. It writes the initial membership, for a directory
// without one, and then the new member in one step. A crash between both leaves a peer that waits for the group; the restoration
// can be repeated.
func (c *RestoreConfig) restore(d Dir, r *Restoration, first bootstrap.Membership, m *machine.Machine) (err error) {
	group := first.GroupID()
	if !d.HasLog() && !c.Commit {
		kept, _, err := d.Incarnation(nil, group)
		if err != nil {
			return err
		}
		return r.leap(m, max(c.After, m.Incarnation(), kept.Recovery.Incarnation), 0, 0)
	}
	disk, err := d.salvage()
	if err != nil {
		return err
	}
	defer release(disk, &err)
	kept, _, err := d.Incarnation(disk, group)
	if err != nil {
		return err
	}
	last, _ := disk.LastIndex() // neither it nor InitialState fails
	hard, _, _ := disk.InitialState()
	if err := r.leap(m, max(c.After, m.Incarnation(), kept.Recovery.Incarnation), last, hard.GetTerm()); err != nil || !c.Commit {
		return err
	}
	began, err := c.begin(group, r.Incarnation)
	if err != nil {
		return err
	}
	if err := bootstrap.Adopt(c.FS, d.Bootstrap(), began.Recovery.Peer, first); err != nil {
		return err
	}
	err = replica.Restore(disk, m, began.StorageID(), replica.Member{ID: began.Recovery.Member, Peer: r.Peer})
	r.Done = err == nil
	return err
}

// maxLeaps bounds the incarnations between a backup and its restoration: each takes 2^40 revisions of 2^52.
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
