package coord

import (
	"fmt"
)

// Compacted reports a request for dropped history. List the keys at Current and watch from the
// next revision.
type Compacted struct {
	// Revision is the latest revision without events.
	Revision Revision
	// Current is the present revision.
	Current Revision
}

// Error implements error.
func (c *Compacted) Error() string {
	return fmt.Sprintf("earlier revisions are compacted: read at %d or later, watch from %d or later; the present revision is %d",
		c.Revision, c.Revision+1, c.Current)
}

// Watch selects events. A watcher has no other state: a slow watcher lags behind and costs the
// group nothing.
type Watch struct {
	Span Span
	// From is the first revision to report, above 0.
	From Revision
	// Prev asks for the versions before the events as well.
	Prev bool
	// Limit on events: the batch ends after the revision that reaches it; 0 or less is 256. Bytes end a batch too, so that
	// slow and large watches take bounded memory. A revision with more than 32 MiB of events ends the watch: TooLarge.
	Limit int
}

// Batch answers a Watch with whole revisions.
type Batch struct {
	// Events are ordered by revision, then by key.
	Events []Event
	// Next is the From of the next request: this batch and earlier ones include every matching event
	// before it. Next-1 is a progress revision.
	Next Revision
	// More says that the history goes on: ask again now. Otherwise ask when the revision
	// reaches Next.
	More bool
}
