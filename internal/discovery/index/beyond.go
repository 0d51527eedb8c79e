package index

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// SomeBeyond returns at most n records of Beyond, each once, and whether there are more.
func SomeBeyond(x *Index, p *query.Plan, cells []records.CellKey, now time.Time, n int) (some []*records.Record, more bool) {
	for r := range Beyond(x, p, cells, now) {
		if len(some) == n {
			return some, true
		}
		some = append(some, r)
	}
	return some, false
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
