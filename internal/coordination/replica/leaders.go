package replica

import (
	"encoding/binary"
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/pkg/fault"
)

// leaders are the last terms in which a command was applied, in rising order. Every command names its leader, and snapshots
// carry the list. So two members see that they applied different commands, even if the log of one is gone.
type leaders []leadership

// leadership is a term with its leader and the index of its last applied command.
type leadership struct{ term, leader, last uint64 }

// append encodes a leadership in leaderSize bytes.
func (l leadership) append(b []byte) []byte {
	for _, v := range [...]uint64{l.term, l.leader, l.last} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

func leadershipOf(b []byte) leadership {
	return leadership{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}
}

// maxLeaders bounds the terms. A disk is hardly put back by more elections.
const maxLeaders = 64

// of returns the leadership of a term; the zero value if it is unknown.
func (l leaders) of(term uint64) leadership {
	if i, ok := slices.BinarySearchFunc(l, term, byTerm); ok {
		return l[i]
	}
	return leadership{}
}

func byTerm(l leadership, term uint64) int {
	switch {
	case l.term < term:
		return -1
	case l.term > term:
		return 1
	}
	return 0
}

// note adds an applied command. It fails for a second leader of its term.
func (l *leaders) note(one leadership) error {
	if n := len(*l); n > 0 && (*l)[n-1].term == one.term {
		if (*l)[n-1].leader != one.leader {
			return twoLeaders(one.term, (*l)[n-1].leader, one.leader)
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

// lacks reports whether a command of another list is missing in this one, which goes on after it: its term is unknown here,
// or had another leader, or ended before it.
func (l leaders) lacks(one leadership) bool {
	n := len(l)
	if n == 0 || n == maxLeaders && one.term < l[0].term { // too old
		return false
	}
	last := l[n-1]
	own := l.of(one.term)
	switch {
	case own.leader != 0 && own.leader != one.leader:
		return true
	case last.term > one.term:
		return own.last < one.last
	}
	return false
}

// differs compares the list with one for which as many commands or more were applied. It returns a leadership of one that
// the other lacks.
func (l leaders) differs(later leaders) (leadership, bool) {
	for _, one := range l {
		if later.lacks(one) || len(later) == 0 || later[len(later)-1].term < one.term {
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

// twoLeaders is the proof that a voter forgot its vote: it voted twice in a term. other is 0 if no command of one is known.
func twoLeaders(term, one, other uint64) error {
	if other == 0 {
		return fault.New("", fault.Internal, "commands of leader %x in term %d were applied, and are missing here or there: "+
			"the disk of a voter lost its vote or entries, or was restored from a copy", one, term)
	}
	return fault.New("", fault.Internal,
		"term %d had two leaders, members %x and %x: the disk of a voter lost its vote, or was restored from a copy", term, one, other)
}

// appendAll encodes the list: its length, and then term, leader and last of each, as unsigned varints.
func (l leaders) appendAll(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(l)))
	for _, one := range l {
		b = binary.AppendUvarint(binary.AppendUvarint(binary.AppendUvarint(b, one.term), one.leader), one.last)
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
		if len(l) > 0 && l[len(l)-1].term >= one.term {
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

// entryHead is the length of what stands before the command of an entry: the id of the proposal, and the leader.
const entryHead = 16

// leaderOf returns the member that proposed a command; 0 for another entry.
func leaderOf(e *pb.Entry) uint64 {
	if e.GetType() != pb.EntryNormal || len(e.GetData()) < entryHead {
		return 0
	}
	return binary.BigEndian.Uint64(e.GetData()[8:])
}
