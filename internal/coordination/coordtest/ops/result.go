package ops

import (
	"errors"
	"fmt"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Result is the answer to one command.
type Result struct {
	// Revision of the keyspace after the command.
	Revision coord.Revision
	// Err explains why the command changed nothing; nil after success. It is a *fault.Error with a
	// kind, mostly a field, and no value.
	Err error
	// Txn answers Txn.
	Txn TxnResult
	// Lock answers Lock, Unlock and Cancel.
	Lock LockResult
	// Lease and TTL, in milliseconds, answer LeaseGrant.
	Lease coord.LeaseID
	TTL   int64
	// Client answers ClientOpen.
	Client coord.ClientID
	// Changed counts keys put and deleted, including keys of ended leases, or the clients removed by
	// ClientsExpire.
	Changed int
	// Ended lists the leases that LeaseRevoke or Expire ended.
	Ended []coord.LeaseID
	// Foreign lists the skipped puts of a RegisterBatch, in ascending order of keys. Another owner made
	// the latest decision about them.
	Foreign []string
	// Since has the present Since of each put of a RegisterBatch, in order, and 0 for skipped puts.
	Since []coord.Revision
}

// LockResult is where a claim stands after a command.
type LockResult struct {
	Key   string      // LockKey of the claim
	Token coord.Token // 0 without a claim
	// Tokens are those of all names of a request for several.
	Tokens []coord.Token
	// Granted says that the claim holds the lock.
	Granted bool
	// Position in the queue, from 1; 0 for a holder. Predecessor is the key ahead in the queue, or "". Only coordtest.Apply fills them.
	Position    int
	Predecessor string
	// Count is the number of open claims of the lease; 0 after the last unlock.
	Count uint32
}

// TxnResult answers a Txn.
type TxnResult struct {
	Succeeded bool         `json:"succeeded"` // Then was executed
	Steps     []StepResult `json:"results"`
	// Failed is the position, from 1, of the first comparison that does not hold; 0 is none. Reason says
	// it for people.
	Failed int    `json:"failed,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Forgotten: the transaction was executed before, and its results were too large to be kept for a repetition
	// of the command. Steps have no keys.
	Forgotten bool `json:"forgotten,omitempty"`
}

// StepResult answers a Step.
type StepResult struct {
	// Count of the keys put or deleted, or of all keys that match a Read, past its limit too.
	Count int `json:"count"`
	// Keys read, or the versions before. Readers share them: never change one.
	Keys []*coord.KeyValue `json:"kvs,omitempty"`
	// Succeeded and Steps answer a transaction within, as those of TxnResult.
	Succeeded bool         `json:"succeeded,omitempty"`
	Steps     []StepResult `json:"results,omitempty"`
}

// Unmet returns a Conflict with the first comparison that does not hold, or nil.
func (r *TxnResult) Unmet() error {
	if r.Failed == 0 {
		return nil
	}
	return &fault.Error{Op: "coord.Txn", Kind: fault.Conflict, Field: fmt.Sprintf("compare[%d]", r.Failed-1), Err: errors.New(r.Reason)}
}

// IsLimited reports whether a read left out matching keys.
func (r *StepResult) IsLimited() bool { return r.Count > len(r.Keys) }

// Renewal is the result of renewing one lease.
type Renewal struct {
	ID        coord.LeaseID
	TTL       int64                  // remaining time to live from now on, in milliseconds; 0 means an unknown lease, or another owner's
	Published *directory.Publication // under the lease that the owner publishes with; otherwise nil
}

// Query selects keys.
type Query struct {
	Span  coord.Span
	At    coord.Revision // to read; 0 is the present
	Limit int            // on keys returned; 0 or less is none
	Bytes int            // above 0: one page, as the peer bounds it
	// From is the Next of the page before.
	From       string
	Order      apiv1.TxnRange_Order
	Descending bool
	KeysOnly   bool // without values
	CountOnly  bool // without keys
}

// Page answers a Query.
type Page struct {
	Revision coord.Revision    // that was read
	Keys     []*coord.KeyValue // in the order of the query
	Next     string            // the first key of the rest; "" at the end
	Count    int               // of all keys in the span, of a query with CountOnly
}

// LockQuery asks for one lock by Name, or with Name "" for a page of the locks under Prefix, after After.
type LockQuery struct {
	Name   string
	Prefix string
	After  string
	Limit  int
	Bytes  int // above 0: one page, as the peer bounds it
	// AfterToken is the token of the last claim of the page before, of the lock Name.
	AfterToken coord.Token
}
