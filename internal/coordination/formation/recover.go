package formation

import (
	"cmp"
	"crypto/rand"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/coordination/view"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Recovery describes a forced recovery from one member's disk.
type Recovery struct {
	Group       string
	Incarnation uint64 // the new one
	Self        coord.Member
	Next        uint64 // raft id of this peer after the recovery
	// Members of the abandoned configuration, voters first. Active marks this one.
	Voters, Learners []coord.Member
	// Index and Term are the end of the log. A survivor with a higher term, or with the same term and a higher
	// index, has more.
	Index, Term uint64
	Revision    coord.Revision // the last one on this disk
	Leases      int
	Locks       int
	Keys        int
	Done        bool
}

// RecoverConfig selects the data directory of a stopped peer.
type RecoverConfig struct {
	Key    crypto.PrivKey
	Dir    string
	FS     vfs.FS // nil: the operating system's
	Commit bool   // false only describes the recovery
}

func (c *RecoverConfig) dir() Dir {
	c.FS = cmp.Or(c.FS, vfs.Default)
	return Dir{FS: c.FS, Path: c.Dir}
}

// Recover makes the peer of an unused data directory the only voter of the group's next incarnation, after the
// permanent loss of a majority of voters. Other survivors are refused afterwards; they join again with an
// empty directory.
//
// A directory that lacks acknowledged writes is accepted: what is left goes on. Data that only lost members had stays lost. The revision leaps ahead, so no fencing token is granted twice,
// and watches receive "compacted". Leases and locks survive; leases get their full time again.
//
// Errors: NotFound for a directory without a member; Conflict if a peer uses it, if its peer was removed from
// the group, or if its group has no other voter; Invalid; Internal.
func Recover(c RecoverConfig) (r Recovery, err error) {
	const op = "coordination.Recover"
	d := c.dir()
	if !d.HasLog() {
		return r, fault.New(op, fault.NotFound, "%s has no member of a group", c.Dir)
	}
	unlock, err := d.lock()
	if err != nil {
		return r, fault.Wrap(op, err)
	}
	defer release(unlock, &err)
	disk, err := d.salvage()
	if err != nil {
		return r, fault.Wrap(op, err)
	}
	defer release(disk, &err)
	r, err = c.recover(disk)
	return r, fault.Wrap(op, err)
}

func (c *RecoverConfig) recover(disk *raftlog.Storage) (r Recovery, err error) {
	state, err := replica.Inspect(disk)
	if err != nil {
		return r, err
	}
	had, err := view.Stored(disk.Group())
	if err != nil {
		return r, err
	}
	if r, err = c.describe(disk, state); err != nil {
		return r, err
	}
	began, err := c.begin(had.Group, state.Machine().Incarnation()+1)
	if err != nil {
		return r, err
	}
	r.Group, r.Next, r.Incarnation = had.Group.String(), began.Recovery.Member, began.Recovery.Incarnation
	if !c.Commit {
		return r, nil
	}
	err = state.Recover(began.StorageID(), replica.Member{ID: r.Next, Peer: r.Self.Peer})
	r.Done = err == nil
	return r, err
}

// begin signs the record of the next incarnation, in which this peer has a new raft id.
func (c *RecoverConfig) begin(group bootstrap.GroupID, next uint64) (view.Incarnation, error) {
	id, err := raftlog.NewMember(rand.Reader)
	if err != nil {
		return view.Incarnation{}, err
	}
	record, err := bootstrap.NewRecovery(c.Key, group, next, id)
	return view.Incarnation{Group: group, Recovery: record}, err
}

// describe describes the disk.
func (c *RecoverConfig) describe(disk *raftlog.Storage, s *replica.RecoveredState) (r Recovery, err error) {
	self := disk.Member()
	id, err := peer.IDFromPrivateKey(c.Key)
	if err != nil {
		return r, fault.As("", fault.Invalid, err)
	}
	r.Self = coord.Member{Peer: id.String(), ID: self, Active: true}
	others, member := 0, false
	for _, m := range s.Members() {
		one := coord.Member{Peer: m.Peer, ID: m.ID, Active: m.ID == self}
		member = member || one.Active
		if one.Active && m.Peer != r.Self.Peer {
			return r, fault.New("", fault.Conflict, "directory of peer %s, key of peer %s: use the key of the directory", m.Peer, id)
		}
		if !m.Voter {
			r.Learners = append(r.Learners, one)
			continue
		}
		r.Voters = append(r.Voters, one)
		if !one.Active {
			others++
		}
	}
	if !member {
		return r, fault.New("", fault.Conflict, "this peer was removed from the group: recover a member")
	}
	if others == 0 && disk.Lost() == nil {
		return r, fault.New("", fault.Conflict, "no other member votes: there is nothing to recover, start the peer")
	}
	r.Index, r.Term = s.Last()
	m := s.Machine()
	r.Revision, r.Leases, r.Locks, r.Keys = m.Revision(), m.LeaseCount(), m.LockCount(), m.Len()
	return r, nil
}
