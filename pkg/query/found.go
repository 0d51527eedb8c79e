package query

import "github.com/blackhole/blackhole/pkg/records"

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
