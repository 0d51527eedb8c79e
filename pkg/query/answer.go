package query

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// Result is one entry of an answer.
type Result struct {
	Record     *records.Record
	DistanceKM *float64          // from the query's place; nil if either place is unknown
	Score      float64           // 0 to 100, in any order: see Claims
	Measured   *records.Measured // measurement of the provider's peer by this peer or by others; nil without one
	Endpoint   *records.Measured // of the offer's endpoint in its own protocol; nil for an offer without an endpoint
	Domain     *records.Measured // of the offer's domain: records.Checked or records.Claimed; nil for an offer without a domain
	Doubts     []string          // claims that cannot be true
	Explain    []string          // the parts of the score, for Query.Explain
}

// Answer is the result of a search.
type Answer struct {
	Results  []Result // in rank order, at most Query.Limit
	Total    int      // matches before the cut
	AtLeast  bool     // Total is a lower bound: the search stopped counting early (see Query.ExactTotal) or some keepers did not count
	Next     string   // for Query.After, if there may be more; empty on the last page, and in other orders than SortStable
	Source   Source
	Complete bool          // every keeper of a possible match answered
	Reason   string        // cause of an incomplete answer
	Age      time.Duration // time in the cache; 0 for a new answer
	Took     time.Duration
	Notes    []string // the cells and keepers asked, for Query.Explain

	Beyond        *LeftOut   // records left out whatever they say, beside a complete answer too; nil for none
	Excluded      []Excluded // providers left out as unreachable, stopped or paused, at most 20, by id
	ExcludedTotal int        // number of those

	Groups []PriceGroup // of Results, in order, for Query.GroupPrices
	Cells  *Cells       // for Query.Cells
}

// LeftOut counts records that need a later version of the program. Only their type, provider and place are known, so an answer leaves
// them out: whether they match, nobody of this version can tell.
type LeftOut struct {
	Records  int      `json:"records"`
	AtLeast  bool     `json:"records_at_least,omitempty"` // Records is a lower bound
	Features []string `json:"features,omitempty"`         // that they need, as far as known, sorted; at most 8
}

// Need adds features.
func (b *LeftOut) Need(features ...string) {
	const most = 8
	b.Features = slices.Concat(b.Features, features)
	slices.Sort(b.Features)
	b.Features = slices.Compact(b.Features)
	b.Features = b.Features[:min(len(b.Features), most)]
}

// Join returns the sum of two counts of different records; nil counts none.
func (b *LeftOut) Join(o *LeftOut) *LeftOut {
	if b == nil || o == nil {
		return cmp.Or(b, o)
	}
	sum := &LeftOut{Records: b.Records + o.Records, AtLeast: b.AtLeast || o.AtLeast, Features: b.Features}
	sum.Need(o.Features...)
	return sum
}

// String is a sentence for people; "" for nil.
func (b *LeftOut) String() string {
	if b == nil {
		return ""
	}
	of, which := "", ""
	if b.AtLeast {
		of = "at least "
	}
	if len(b.Features) > 0 {
		which = " with " + strings.Join(b.Features, ", ")
	}
	what := "records are left out, because they need"
	if b.Records == 1 {
		what = "record is left out, because it needs"
	}
	return fmt.Sprintf("%s%d %s a newer version of blackholed%s", of, b.Records, what, which)
}

// Cells counts matches by place. Their sum and Unplaced are Answer.Total.
type Cells struct {
	// Length of the geohashes: as asked, or a smaller one. A peer that keeps all that can match counts up to 4096 cells, and another one
	// asks about fewer.
	Length   int         `json:"length"`
	Counts   []CellCount `json:"counts"`   // of cells with a match, by geohash
	Unplaced int         `json:"unplaced"` // matches without a place
	Menu                 // of all matches
}

// CellCount is the number of matches in one cell, and what they are.
type CellCount struct {
	Cell  geo.Cell `json:"cell"` // geohash
	Count int      `json:"count"`
	Least *float64 `json:"least_price,omitempty"` // for SortPrice: of the matches with a price; nil without one
	Menu
}

// PriceGroup is a part of an answer whose prices have one currency and unit.
type PriceGroup struct {
	Terms
	First   int  `json:"first"`   // index of the group's first result
	Results int  `json:"results"` // number of its results
	Total   int  `json:"total"`   // its matches before the cut
	AtLeast bool `json:"total_at_least,omitempty"`
}

// Excluded is a provider with matches that an answer leaves out, or one offer: measured as not serving, stopped or paused.
type Excluded struct {
	Provider string    `json:"provider"`
	ID       string    `json:"id,omitempty"` // of one offer; empty: all offers of the provider
	Reason   string    `json:"reason"`
	Since    time.Time `json:"since,omitzero"` // first failed measurement, or the provider's word
}

// Source is the origin of an answer.
type Source string

// The sources.
const (
	SourceCache   Source = "cache"   // an answer found earlier, Age ago
	SourceLocal   Source = "local"   // this peer's index
	SourceNetwork Source = "network" // keepers of the cells
)
