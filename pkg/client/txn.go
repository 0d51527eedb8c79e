package client

import (
	"context"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Compare is a comparison of a transaction: see WhileAt and Held.Guard.
type Compare struct{ message *api.Compare }

// WhileAt holds while key was last changed at a revision; 0: while it is absent.
func WhileAt(key string, mod Revision) Compare {
	return Compare{coord.WhileAt(key, coord.Revision(mod))}
}

// Step is a step of a transaction: see Put, Span.Delete, Span.Read and Txn.Step.
type Step struct{ message *api.TxnStep }

// Put sets a key, under the lease of the KV of the transaction.
func Put(key string, value []byte) Step { return Step{coord.PutStep(key, value, 0)} }

// Delete deletes the keys of the span.
func (s Span) Delete() Step { return Step{coord.Span(s).DeleteStep()} }

// Read reads the keys of the span.
func (s Span) Read() Step { return Step{coord.Span(s).ReadStep()} }

// Txn is a transaction that is being written. It is for one goroutine.
type Txn struct {
	kv      KV
	request api.TxnRequest
}

// Txn begins a transaction: comparisons, and the steps that follow if all of them hold or not. The group executes
// it at one revision.
//
//	kv.Txn().If(client.WhileAt("config", seen)).
//		Then(client.Put("config", value)).Else(client.Exactly("config").Read()).Commit(ctx)
func (kv KV) Txn() *Txn { return &Txn{kv: kv} }

// If adds comparisons.
func (t *Txn) If(compare ...Compare) *Txn {
	for _, c := range compare {
		t.request.Compare = append(t.request.Compare, c.message)
	}
	return t
}

// Then adds steps for the case that all comparisons hold.
func (t *Txn) Then(steps ...Step) *Txn {
	t.request.Then = t.add(t.request.Then, steps)
	return t
}

// Else adds steps for the case that one does not.
func (t *Txn) Else(steps ...Step) *Txn {
	t.request.Else = t.add(t.request.Else, steps)
	return t
}

func (t *Txn) add(to []*api.TxnStep, steps []Step) []*api.TxnStep {
	for _, s := range steps {
		if put := s.message.GetPut(); put != nil { // a step may be in several transactions
			s = Step{coord.PutStep(string(put.GetKey()), put.GetValue(), coord.LeaseID(t.kv.lease))}
		}
		to = append(to, s.message)
	}
	return to
}

// Step is the transaction as a step of another one. Its comparisons look at the state before the other one.
func (t *Txn) Step() Step {
	within := &api.TxnBranch{Compare: t.request.GetCompare(), Then: t.request.GetThen(), Else: t.request.GetElse()}
	return Step{&api.TxnStep{Step: &api.TxnStep_Txn{Txn: within}}}
}

// TxnResult is what a transaction did.
type TxnResult struct {
	// Unmet is a Conflict with the first comparison that does not hold: then the steps of Else were executed. Nil:
	// those of Then.
	Unmet    error
	Revision Revision // after the transaction
	Changed  int      // keys put and deleted
	Steps    []StepResult
}

// StepResult is what a step did.
type StepResult struct {
	Count int         // keys put or deleted, or all keys of a read span
	Keys  []*KeyValue // of a read span
	Then  bool        // of a transaction within: its comparisons hold
	Steps []StepResult
}

// Commit executes the transaction. Comparisons that do not hold are no error: see TxnResult.Unmet.
//
// Errors: those of Put; Unavailable, too, for a transaction that was executed and whose results are gone because
// the answer was lost and large: read what it changed.
func (t *Txn) Commit(ctx context.Context) (TxnResult, error) {
	const op = "client.Txn.Commit"
	result, err := t.kv.client.do(ctx, &t.request)
	if err != nil {
		return TxnResult{}, fault.Wrap(op, err)
	}
	r := result.GetTxn()
	done := TxnResult{
		Unmet: coord.Unmet(r), Revision: Revision(r.GetHeader().GetRevision()), Changed: int(r.GetChanged()),
		Steps: stepResults(r.GetResults()),
	}
	if r.GetForgotten() {
		return done, fault.New(op, fault.Unavailable,
			"the transaction was executed, and the group has not kept its results for the repeated call")
	}
	return done, nil
}

func stepResults(list []*api.TxnStepResult) (all []StepResult) {
	for _, r := range list {
		one := StepResult{Count: int(r.GetCount()), Then: r.GetSucceeded(), Steps: stepResults(r.GetResults())}
		for _, kv := range r.GetKvs() {
			one.Keys = append(one.Keys, keyValue(kv))
		}
		all = append(all, one)
	}
	return all
}
