package query

import (
	"time"

	"github.com/blackhole/blackhole/pkg/records"
)

// Result is one entry of an answer.
type Result struct {
	Record     *records.Record
	DistanceKM *float64          // from the query's place; nil without one or when the record's is unknown
	Score      float64           // Plan.Score, whatever the order
	Measured   *records.Measured // this peer's own finding about the provider; nil when it has not looked
	Explain    []string          // how the score came about; only where asked for
}

// Answer is what a search gives.
type Answer struct {
	Results  []Result // in rank order, at most the plan's limit
	Total    int      // matches found before the cut
	AtLeast  bool     // Total is a lower bound: the best are known before all are counted (Query.ExactTotal), or were not counted everywhere
	Source   Source
	Complete bool          // every holder that could have a match answered
	Reason   string        // why not, where Complete is false
	Age      time.Duration // since the answer was found; 0 unless from the cache
	Took     time.Duration
	Notes    []string // what was asked and what was left out; only with Explain
}

// Source is where an answer came from.
type Source string

// The sources.
const (
	SourceCache   Source = "cache"   // found earlier, Age ago
	SourceLocal   Source = "local"   // this peer's index alone
	SourceNetwork Source = "network" // keepers were asked
)

// Found is what the keepers of a plan's cells answered, merged and verified.
type Found struct {
	Records  []*records.Record // matches, the freshest of each name, in no promised order
	Total    int               // matches that the keepers hold, withheld ones included
	AtLeast  bool              // Total is a lower bound
	Complete bool              // every group of keepers answered, and nothing withheld could rank among the first Limit
	Reason   string            // why not, when not Complete
	Local    bool              // this peer alone keeps all the cells
	Notes    []string          // with Explain: cells asked, keepers asked, bounds
}
