package authority

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/internal/contract/coord"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// object is a name, or a range of keys, that a command changes.
type object struct {
	kind  string
	field string // of the request
	name  string
	span  *coord.Span // instead of name
	hides bool        // its history is hidden
}

// String names the object for people.
func (o object) String() string {
	if o.span != nil {
		return fmt.Sprintf("the keys from %s to %s", strconv.Quote(o.span.From), strconv.Quote(o.span.To))
	}
	return o.kind + " " + strconv.Quote(o.name)
}

// objectsOf lists what a command changes by name. A lease belongs to its owner and has no name.
func objectsOf(m *coordv1.Command) []object {
	switch r := m.GetRequest().(type) {
	case *coordv1.Command_Lock:
		return locksOf(r.Lock.GetName(), r.Lock.GetOthers())
	case *coordv1.Command_TryLock:
		return locksOf(r.TryLock.GetName(), r.TryLock.GetOthers())
	case *coordv1.Command_Unlock:
		return []object{{kind: "lock", field: "name", name: r.Unlock.GetName()}}
	case *coordv1.Command_SetRequirement:
		return []object{{kind: "requirement", field: "name", name: r.SetRequirement.GetName()}}
	case *coordv1.Command_DeleteRequirement:
		return []object{{kind: "requirement", field: "name", name: r.DeleteRequirement.GetName()}}
	case *coordv1.Command_Txn:
		return objectsOfTxn("", &apiv1.TxnBranch{Compare: r.Txn.GetCompare(), Then: r.Txn.GetThen(), Else: r.Txn.GetElse()}, coord.TxnDepth)
	}
	return nil
}

func locksOf(name string, others []string) []object {
	all := []object{{kind: "lock", field: "name", name: name}}
	for _, other := range others {
		all = append(all, object{kind: "lock", field: "others", name: other})
	}
	return all
}

// objectsOfTxn returns the locks and keys of a transaction, also those that it only compares or reads, and those of
// branches that are not taken: which ones are depends on them. within begins the names of fields. Deeper than the group allows
// it needs all keys.
func objectsOfTxn(within string, t *apiv1.TxnBranch, depth int) []object {
	if depth < 0 {
		return []object{{kind: "keys", field: strings.TrimSuffix(within, "."), span: &coord.Span{}}}
	}
	var all []object
	for i, c := range t.GetCompare() {
		if c.GetTarget() == apiv1.Compare_HOLDS {
			all = append(all, object{kind: "lock", field: fmt.Sprintf("%scompare[%d].lock", within, i), name: c.GetLock()})
		} else {
			all = append(all, named(fmt.Sprintf("%scompare[%d].key", within, i), c.GetKey(), c.GetRangeEnd()))
		}
	}
	branch := func(name string, steps []*apiv1.TxnStep) {
		for i, s := range steps {
			field := fmt.Sprintf("%s%s[%d].", within, name, i)
			switch r := s.GetStep().(type) {
			case *apiv1.TxnStep_Put:
				all = append(all, named(field+"key", r.Put.GetKey(), nil))
			case *apiv1.TxnStep_Delete:
				all = append(all, named(field+"key", r.Delete.GetKey(), r.Delete.GetRangeEnd()))
			case *apiv1.TxnStep_Range:
				all = append(all, named(field+"key", r.Range.GetKey(), r.Range.GetRangeEnd()))
			case *apiv1.TxnStep_Hide:
				o := named(field+"hide", r.Hide.GetKey(), r.Hide.GetRangeEnd())
				o.hides = true
				all = append(all, o)
			case *apiv1.TxnStep_Txn:
				all = append(all, objectsOfTxn(field+"txn.", r.Txn, depth-1)...)
			}
		}
	}
	branch("then", t.GetThen())
	branch("else", t.GetElse())
	return all
}

// named is the object of a key or of a range of keys.
func named(field string, key, end []byte) object {
	if len(end) == 0 {
		return object{kind: "key", field: field, name: string(key)}
	}
	span := coord.SpanOf(key, end)
	if span == coord.Exactly(span.From) {
		return object{kind: "key", field: field, name: span.From}
	}
	return object{kind: "keys", field: field, span: &span}
}
