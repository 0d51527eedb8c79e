package membership_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/membership"
)

func TestAgree(t *testing.T) {
	voter := func(id uint64, hash string) membership.Report {
		return membership.Report{Member: id, Voter: true, Hash: hash}
	}
	learner := func(id uint64, hash string) membership.Report { return membership.Report{Member: id, Hash: hash} }
	type reports = []membership.Report
	for _, c := range []struct {
		name string
		in   reports
		want membership.Agreement
	}{
		{"all agree", reports{voter(1, "a"), voter(2, "a"), voter(3, "a"), learner(4, "a")}, membership.Agreement{Hash: "a"}},
		{"a voter is odd", reports{voter(1, "a"), voter(2, "b"), voter(3, "a")}, membership.Agreement{Hash: "a", Odd: []uint64{2}}},
		{"the leader is odd", reports{voter(1, "b"), voter(2, "a"), voter(3, "a")}, membership.Agreement{Hash: "a", Odd: []uint64{1}}},
		{"a learner is odd", reports{voter(1, "a"), learner(2, "b")}, membership.Agreement{Hash: "a", Odd: []uint64{2}}},
		{"learners do not count", reports{voter(1, "a"), voter(2, "b"), learner(3, "b"), learner(4, "b")}, membership.Agreement{Split: true}},
		{"two differ", reports{voter(1, "a"), voter(2, "b")}, membership.Agreement{Split: true}},
		{"three differ", reports{voter(1, "a"), voter(2, "b"), voter(3, "c")}, membership.Agreement{Split: true}},
		{"one is silent", reports{voter(1, "a"), voter(2, ""), voter(3, "a")}, membership.Agreement{Hash: "a", Missing: 1}},
		{"one is silent, two differ", reports{voter(1, "a"), voter(2, ""), voter(3, "b")}, membership.Agreement{Split: true, Missing: 1}},
		{"half is no majority", reports{voter(1, "a"), voter(2, "a"), voter(3, "b"), voter(4, "b")}, membership.Agreement{Split: true}},
		{"one is not enough to know", reports{voter(1, "a"), voter(2, ""), voter(3, "")}, membership.Agreement{Missing: 2}},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, membership.Agree(c.in)) })
	}
}
