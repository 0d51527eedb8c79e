package instance

import "time"

// Registration is a request to register. The registry generates an empty ID.
type Registration struct {
	Key
	Spec          Spec
	Status        Status // declared by the instance: Starting, or Unknown for none
	Strict        bool   // fail for an existing key
	RequireCommit bool   // fail without a commit of the directory, and keep nothing
	Local         bool   // sent from this host: its checks may use loopback addresses
	Principal     string // of Instance; the agent sets it
	Client        string // of whose share of the peer's instances it is, until the peer restarts; "": of nobody's. The agent sets it
}

// Consistency is the required freshness of an answer.
type Consistency uint8

const (
	// Local answers from this peer's memory; Stale marks an answer that may be
	// old.
	Local Consistency = iota
	// Linearizable answers reflect all earlier answers of any peer.
	Linearizable
)

// Query asks for instances of one service. Canonical makes queries comparable.
type Query struct {
	Name
	Selector
	Consistency Consistency
}

// Contact describes the freshness of an answer.
type Contact struct {
	Stale    bool          // no contact to the cluster: no instance expires and no change arrives
	Reason   string        // for people; "" if not stale
	Age      time.Duration // time without contact; 0 if not stale
	Revision uint64        // the answer contains all changes up to it
}

// Result is a View with its freshness.
type Result struct {
	*View
	Contact
}

// Services is the service list of a namespace.
type Services struct {
	Index    uint64 // changes only together with the list
	Services []Summary
	Contact
}

// Summary summarises a service.
type Summary struct {
	Name      string   `json:"name"`
	Instances int      `json:"instances"`
	Up        int      `json:"up"`
	Tags      []string `json:"tags,omitempty"` // of all instances, ascending
}

// Bytes returns about how many bytes a rendering of the summary has.
func (s Summary) Bytes() int {
	const numbers, one = 64, 8 // numbers, names and marks of all; marks of a text
	n := numbers + len(s.Name)
	for _, tag := range s.Tags {
		n += one + len(tag)
	}
	return n
}

// EventType is the kind of a change, with the number that it has on the wire.
type EventType uint8

const (
	// Added instances enter the result.
	Added EventType = iota + 1
	// Modified instances stay in the result.
	Modified
	// Removed instances leave the result. The event has the last state, with
	// StatusDown after the end of the instance.
	Removed
)

// Event is a change of a result.
type Event struct {
	Type     EventType
	Instance *Instance
	Revision uint64
}

// Batch contains the changes up to an index. It contains all events of a
// revision.
type Batch struct {
	Reset  bool // Events are the complete result and replace all earlier batches
	Events []Event
	Index  uint64 // continues after this batch, at any peer
	Contact
}
