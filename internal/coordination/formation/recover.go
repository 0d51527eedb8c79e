package formation

import (
	"cmp"
	"crypto/rand"
	"log/slog"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/coordination/view"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Recovery describes the next incarnation of a group.
type Recovery struct {
	Incarnation uint64
	Revision    coord.Revision // the last one on this disk
}

// RecoverConfig selects the data directory of a stopped peer.
type RecoverConfig struct {
	Key crypto.PrivKey
	Dir string
	FS  vfs.FS // nil: the operating system's
}

func (c *RecoverConfig) dir() Dir {
	c.FS = cmp.Or(c.FS, vfs.Default)
	return Dir{FS: c.FS, Path: c.Dir}
}

// Recover makes the peer of an unused data directory the only voter of the group's next incarnation, after the
// permanent loss of a majority of voters. Other survivors are refused afterwards; they join again with an
// empty directory.
//
// Data that only lost members had stays lost. The revision leaps ahead, so no fencing token is granted twice, and
// watches receive "compacted". Leases and locks survive; leases get their full time again.
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
	disk, err := d.Open(slog.New(slog.DiscardHandler), nil)
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
	self, err := c.self(disk, state)
	if err != nil {
		return r, err
	}
	began, err := c.begin(had.Group, state.Machine().Incarnation()+1)
	if err != nil {
		return r, err
	}
	return Recovery{began.Recovery.Incarnation, state.Machine().Revision()},
		state.Recover(began.StorageID(), replica.Member{ID: began.Recovery.Member, Peer: self})
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

// self returns this peer, whose disk it must be, and which must be a member of a group with other voters.
func (c *RecoverConfig) self(disk *raftlog.Storage, s *replica.RecoveredState) (string, error) {
	id, err := peer.IDFromPrivateKey(c.Key)
	if err != nil {
		return "", fault.As("", fault.Invalid, err)
	}
	member, others := false, false
	for _, m := range s.Members() {
		own := m.ID == disk.Member()
		if own && m.Peer != id.String() {
			return "", fault.New("", fault.Conflict,
				"directory of peer %s, key of peer %s: use the key of the directory", m.Peer, id)
		}
		member, others = member || own, others || m.Voter && !own
	}
	switch {
	case !member:
		return "", fault.New("", fault.Conflict, "this peer was removed from the group: recover a member")
	case !others:
		return "", fault.New("", fault.Conflict, "no other member votes: there is nothing to recover, start the peer")
	}
	return id.String(), nil
}
