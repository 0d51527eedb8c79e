package machine

import (
	"slices"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// leap is the revision step of a new incarnation: more than a group can write while a backup is
// useful (127 days at 10^5 writes a second).
const leap = 1 << 40

// highest bounds revisions and so fencing tokens: they stay exact in a float64, which readers of JSON use, and below the own
// numbering of a peer's catalog. Writes alone never come near.
const highest = 1 << 52

func compact(m *Machine, r *coordv1.Compact) error {
	to := coord.Revision(r.GetRevision())
	if to < 0 || to > m.revision {
		return fault.Invalidf("revision", to, "the present revision is %d", m.revision)
	}
	if to > m.compacted {
		m.compact(to)
	}
	return nil
}

// Bounds of setAddresses.
const (
	maxAddresses    = 256
	maxAddressBytes = 256
)

// setAddresses changes no revision: applications do not see it.
func setAddresses(m *Machine, r *coordv1.SetAddresses) error {
	all := r.GetMultiaddrs()
	if len(all) > maxAddresses || slices.ContainsFunc(all, func(a []byte) bool { return len(a) > maxAddressBytes }) {
		return fault.Invalidf("multiaddrs", len(all), "must be at most %d of %d bytes", maxAddresses, maxAddressBytes)
	}
	m.addresses = all
	return nil
}

// bumpIncarnation begins a new incarnation of the group after a restore that may lack the last entries. The revision leaps far
// beyond the possible loss, so that tokens and revisions stay unique. Claims that wait leave their queues: they have tokens of
// before the leap, and must not hold after a later token that this log does not know. A group that had given itself up lives again.
func bumpIncarnation(m *Machine, r *coordv1.BumpIncarnation) error {
	if r.GetIncarnation() != m.incarnation+1 {
		return fault.Refused(fault.Conflict, "incarnation", "the present one is %d", m.incarnation)
	}
	if m.revision > highest-2*leap {
		return fault.Refused(fault.LimitReached, "incarnation", "no revisions are left")
	}
	m.incarnation, m.merging = r.GetIncarnation(), merging{}
	m.revision += leap
	m.compact(m.revision)
	for _, name := range m.LockNames("") {
		q := m.locks[name]
		for _, kv := range slices.Clone(q.claims[q.held:]) {
			q.remove(kv.Token())
			m.remove(kv.Key)
		}
	}
	return nil
}
