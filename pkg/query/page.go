package query

import (
	"encoding/binary"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// Pages. In SortStable records stand in the order of their names, and a name never changes. So a record that is there
// during all pages is on exactly one of them, whatever is added, changed or withdrawn meanwhile.

// Next returns the Answer.Next for the results of a plan: the name of the last one, unless the page has room.
func Next(p *Plan, results []Result) string {
	if n := len(results); p.query.Sort == SortStable && n > 0 && n == p.query.Limit {
		return results[n-1].Record.Name().String()
	}
	return ""
}

func (q *Query) validateAfter() error {
	switch {
	case q.After == "":
		return nil
	case q.Sort != SortStable:
		return fault.Invalidf("after", clip(q.After), "needs sort=stable: in other orders a changed record moves between pages")
	case nameOf(q.After) == records.Name{}:
		return fault.Invalidf("after", clip(q.After), "must be the next of an answer")
	}
	return nil
}

// nameOf reads PROVIDER/ID, or returns the zero Name.
func nameOf(s string) records.Name {
	provider, id, ok := strings.Cut(s, "/")
	owner, err := peer.Decode(provider)
	if !ok || err != nil || records.CheckID("after", id) != nil || owner.String() != provider {
		return records.Name{}
	}
	return records.Name{Provider: owner, ID: id}
}

// isAfter reports whether a name is on the page of a plan or a later one.
func isAfter(p *Plan, n records.Name) bool { return p.query.After == "" || n.Compare(p.after) > 0 }

// ed25519Head is the number of bytes with which all ids of Ed25519 keys begin: see docs/wire.md.
const ed25519Head = 6

// stable maps a name to [0, 1) in the order of the providers. Names with one value differ in their order, as equal
// values of every order do.
func stable(n records.Name) float64 {
	const bits = 53 // of a float64's significand
	var b [8]byte
	copy(b[:], n.Provider[min(ed25519Head, len(n.Provider)):])
	return float64(binary.BigEndian.Uint64(b[:])>>(64-bits)) / (1 << bits)
}
