package index

import (
	"strings"
	"time"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// SomeBeyond returns at most n live records of some cells that may match a plan but need features of a later version, and whether there
// are more. They are no part of a search.
func SomeBeyond(x *Index, p *queries.Plan, cells []records.CellKey, now time.Time, n int) (some []*records.Record, more bool) {
	add := func(r *records.Record) bool {
		if !p.Beyond(r) {
			return true
		}
		if more = len(some) == n; !more {
			some = append(some, r)
		}
		return !more
	}
	for _, c := range cells {
		if c.OfProvider() {
			x.In(c, now)(add)
		} else {
			x.shards.of(beyond+c.Type).walk(c, now, add)
		}
		if more {
			break
		}
	}
	return some, more
}

// LeftOut counts some records, others that this version could not even read, and whether there are more. It returns nil for none.
func LeftOut(some []*records.Record, unread int, more bool) *query.LeftOut {
	if len(some)+unread == 0 && !more {
		return nil
	}
	b := &query.LeftOut{Records: len(some) + unread, AtLeast: more}
	for _, r := range some {
		b.Need(strings.Split(r.Needs(), ", ")...)
	}
	return b
}

// Concerns reports whether answers to a plan depend on a change: a version of it matches, or needs a feature of a
// later version.
func (ch Change) Concerns(p *queries.Plan) bool {
	concerned := func(r *records.Record) bool {
		return r != nil && (p.Match(r) || p.Beyond(r))
	}
	return concerned(ch.Old) || concerned(ch.New)
}
