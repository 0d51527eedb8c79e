package coord

import (
	"fmt"
)

// Compacted says that what was asked for lies before the history that is kept. List the keys
// at Current and watch from the revision after it.
type Compacted struct {
	// Revision is the latest whose events are gone.
	Revision Revision
	// Current is the present revision.
	Current Revision
}

// Error implements error.
func (c *Compacted) Error() string {
	return fmt.Sprintf("compacted up to revision %d, the present one is %d", c.Revision, c.Current)
}

// Watch asks for events. It is all there is to a watcher: whoever is slow is behind, and
// costs the state nothing.
type Watch struct {
	Span Span
	// From is the first revision to report, above 0.
	From Revision
	// Prev asks for the versions before the events as well.
	Prev bool
	// Limit on events: the batch ends after the revision that reaches it; 0 or less is 256.
	Limit int
}

// Batch answers a Watch with whole revisions.
type Batch struct {
	// Events in the order of their revisions, within one by key.
	Events []Event
	// Next is what to ask from next: every matching event before it is in this batch or
	// was in an earlier one. So Next-1 is a revision to report as progress.
	Next Revision
	// More says that the history goes on: ask again now. Otherwise ask when the revision
	// reaches Next.
	More bool
}
