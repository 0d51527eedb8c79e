package coordination

import (
	"crypto/rand"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Recovery is what it means to go on with what one member has.
type Recovery struct {
	Group       string
	Incarnation uint64 // that begins
	Self        coord.Member
	Next        uint64 // raft id of this peer from then on
	// Members of the configuration that is left behind; the voters first. Active is this one.
	Voters, Learners []coord.Member
	// Index and Term are where the log ends: another survivor whose term is higher, or at the same term
	// whose index is, has more.
	Index, Term uint64
	Revision    coord.Revision // the last one here
	Leases      int
	Locks       int
	Keys        int
	Done        bool
}

// RecoverConfig says whose data directory it is. See Config.
type RecoverConfig struct {
	Key    crypto.PrivKey
	Dir    string
	FS     vfs.FS // nil: the real one
	Commit bool   // do it; otherwise only say what it means
}

// Recover makes the peer of a data directory, which nobody runs, the only voter of the next
// incarnation of its group: for the day when the majority of the voters is lost for good. Whoever
// survived beside it is refused from then on, and clears its directory to be a member anew.
//
// What only the lost ones had is lost. The revision leaps ahead, so that no token that may have
// been granted is granted again, and watches are told that their place is compacted. Leases
// and locks stay, and have their whole time again.
//
// Errors: NotFound when the directory has nothing of a group; Conflict when a peer runs on it, it is no
// member any more, or its group has no other voter to be lost; Invalid; Internal.
func Recover(c RecoverConfig) (r Recovery, err error) {
	const op = "group.Recover"
	if c.FS == nil {
		c.FS = vfs.Default
	}
	raft := filepath.Join(c.Dir, "raft")
	if _, err := c.FS.Stat(filepath.Join(raft, "log")); err != nil {
		return r, fault.New(op, fault.NotFound, "%s has no member of a group: %w", c.Dir, err)
	}
	unlock, err := bootstrap.Lock(c.FS, filepath.Join(c.Dir, "bootstrap"))
	if err != nil {
		return r, fault.New(op, fault.Conflict, "%s is in use: stop the peer first: %w", c.Dir, err)
	}
	defer release(unlock, &err)
	disk, err := raftlog.Open(raftlog.Options{FS: c.FS, Dir: raft, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return r, fault.Wrap(op, err)
	}
	defer release(disk, &err)
	r, err = recoverDisk(c, disk)
	return r, fault.Wrap(op, err)
}

func recoverDisk(c RecoverConfig, disk *raftlog.Storage) (r Recovery, err error) {
	survivor, err := replica.Inspect(disk)
	if err != nil {
		return r, err
	}
	life, err := incarnationOf(disk.Group())
	if err != nil {
		return r, err
	}
	next, err := raftlog.NewMember(rand.Reader)
	if err != nil {
		return r, err
	}
	if r, err = recovery(c, disk.Member(), survivor); err != nil {
		return r, err
	}
	r.Group, r.Next, r.Incarnation = life.group.String(), next, survivor.Machine().Incarnation()+1
	if !c.Commit {
		return r, nil
	}
	began, err := bootstrap.NewRecovery(c.Key, life.group, r.Incarnation, next)
	if err != nil {
		return r, err
	}
	err = survivor.Recover(incarnation{life.group, began}.storageID(), replica.Member{ID: next, Peer: r.Self.Peer})
	r.Done = err == nil
	return r, err
}

// recovery describes what is there.
func recovery(c RecoverConfig, self uint64, s *replica.RecoveredState) (r Recovery, err error) {
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
			return r, fault.New("", fault.Conflict, "the directory is that of peer %s, the key is that of %s", m.Peer, id)
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
	if others == 0 {
		return r, fault.New("", fault.Conflict, "no other member votes: there is nothing to recover, start the peer")
	}
	m := s.Machine()
	r.Index, r.Term = s.Last()
	r.Revision, r.Leases, r.Locks, r.Keys = m.Revision(), m.LeaseCount(), m.LockCount(), m.Len()
	return r, nil
}

// release closes, and tells of a failure unless there was one before.
func release(c io.Closer, err *error) {
	if e := c.Close(); *err == nil {
		*err = e
	}
}
