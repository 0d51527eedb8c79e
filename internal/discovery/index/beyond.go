package index

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// SomeBeyond returns at most n live records of some cells that may match a plan but need features of a later version, and whether there
// are more. They are no part of a search.
func SomeBeyond(x *Index, p *query.Plan, cells []records.CellKey, now time.Time, n int) (some []*records.Record, more bool) {
	add := func(r *records.Record) bool {
		if !query.Beyond(p, r) {
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

// DescribeBeyond says how many records an answer leaves out, or "" for none, and which features they need. It counts
// unread records without their features.
func DescribeBeyond(some []*records.Record, unread int, more bool) string {
	n := len(some) + unread
	if n == 0 && !more {
		return ""
	}
	const shown = 4
	var features []string
	for _, r := range some {
		features = append(features, strings.Split(r.Needs(), ", ")...)
	}
	slices.Sort(features)
	features = slices.Compact(features)
	which := ""
	if len(features) > 0 {
		which = " with " + strings.Join(features[:min(len(features), shown)], ", ")
	}
	if len(features) > shown {
		which += " and more"
	}
	of := ""
	if more {
		of = "more than "
	}
	return fmt.Sprintf("%s%d records are left out, because they need a newer version of blackholed%s", of, n, which)
}
