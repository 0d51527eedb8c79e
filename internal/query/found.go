package query

import (
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// MaxExcluded bounds Answer.Excluded.
const MaxExcluded = 20

// Found is the merged and verified answer of the keepers of a plan's cells.
type Found struct {
	Records  []*records.Record // matches, the freshest version of each name, in any order
	Total    int               // matches at the keepers, with those beyond their limits
	AtLeast  bool              // Total is a lower bound
	Complete bool              // every group of keepers answered, and no match outside Records ranks among the first Limit
	Reason   string            // cause of an incomplete answer
	Beyond   *query.LeftOut    // records left out because they need a later version of the program; nil for none
	Local    bool              // this peer is the only keeper of every cell
	Menu     query.Menu        // of all matches, for a count
	Notes    []string          // cells asked, keepers asked, bounds; for Query.Explain
}
