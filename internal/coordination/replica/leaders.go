package replica

import (
	"encoding/binary"
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/pkg/fault"
)

// leaders are the last terms in which a command was applied, in rising order. Every command names its leadership, and
// snapshots carry the list. So two members see that they applied different commands, even if the log of one is gone.
type leaders []leadership

// leadership is a term with the index of its last applied command. The nonce is of the leader's process: a leader that was
// put back to an earlier moment can lead in the same term once more.
type leadership struct{ term, nonce, last uint64 }

// append encodes a leadership in leadershipSize bytes.
func (l leadership) append(b []byte) []byte {
	for _, v := range [...]uint64{l.term, l.nonce, l.last} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

func leadershipOf(b []byte) leadership {
	return leadership{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}
}

// maxLeaders bounds the terms. A disk is hardly put back by more elections.
const maxLeaders = 64

// note adds an applied command. It fails for a second leader of its term.
func (l *leaders) note(one leadership) error {
	if n := len(*l); n > 0 && (*l)[n-1].term == one.term {
		if (*l)[n-1].nonce != one.nonce {
			return errForgotten(one.term)
		}
		(*l)[n-1].last = one.last
		return nil
	}
	if len(*l) == maxLeaders {
		*l = slices.Clone((*l)[1:])
	}
	*l = append(*l, one)
	return nil
}

// lacks reports whether this list goes on after a command of another one without it.
func (l leaders) lacks(one leadership) bool {
	i := slices.IndexFunc(l, func(own leadership) bool { return own.last >= one.last })
	if i < 0 || i == 0 && len(l) == maxLeaders && one.term < l[0].term { // not reached, or too old
		return false
	}
	return l[i].term != one.term || l[i].nonce != one.nonce
}

// differs compares the list with one for which as many commands or more were applied. It returns what one lacks of the
// other.
func (l leaders) differs(later leaders) (leadership, bool) {
	for _, one := range l {
		if later.lacks(one) || len(later) == 0 || later[len(later)-1].last < one.last {
			return one, true
		}
	}
	for _, one := range later {
		if l.lacks(one) {
			return one, true
		}
	}
	return leadership{}, false
}

// errForgotten is the contradiction of two lists.
func errForgotten(term uint64) error {
	return fault.New("", fault.Internal,
		"members applied different commands in term %d: the disk of a voter lost its vote or entries, or was restored from a copy", term)
}

// appendAll encodes the list: its length, and then term, nonce and last of each, as unsigned varints.
func (l leaders) appendAll(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(l)))
	for _, one := range l {
		b = binary.AppendUvarint(binary.AppendUvarint(binary.AppendUvarint(b, one.term), one.nonce), one.last)
	}
	return b
}

// decodeLeaders decodes appendAll, and returns what follows. Errors: Invalid.
func decodeLeaders(b []byte) (l leaders, rest []byte, err error) {
	next := func() (v uint64) {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			err = fault.Invalidf("leaders", nil, "are cut off")
			return 0
		}
		b = b[n:]
		return v
	}
	n := next()
	if n > maxLeaders {
		return nil, nil, fault.Invalidf("leaders", n, "are more than %d", maxLeaders)
	}
	for range n {
		one := leadership{next(), next(), next()}
		if err != nil {
			return nil, nil, err
		}
		if n := len(l); n > 0 && (l[n-1].term >= one.term || l[n-1].last >= one.last) {
			return nil, nil, fault.Invalidf("leaders", one.term, "are not in ascending order")
		}
		l = append(l, one)
	}
	return l, b, err
}

// snapshotData encodes what a snapshot says of the members and of the leaders.
func snapshotData(l leaders, members []Member) []byte {
	return append(l.appendAll(nil), encodeMembers(members)...)
}

// leadersOf decodes the leaders of a snapshot.
func leadersOf(snap *pb.Snapshot) (leaders, error) {
	l, _, err := decodeLeaders(snap.GetData())
	return l, err
}

// entryHead is the length of what stands before the command of an entry: the id of the proposal, and the leader's nonce.
const entryHead = 16
