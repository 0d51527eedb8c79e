package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// maxTxnBody bounds the body of a transaction: the group's bound on its bytes, in base64 and with names.
const maxTxnBody = 6 << 20

// txnBody is a transaction: then is executed if every comparison holds, otherwise else.
type txnBody struct {
	Compare []compareBody `json:"compare"`
	Then    []stepBody    `json:"then"`
	Else    []stepBody    `json:"else"`
}

// spanBody names one key, the keys from it up to range_end, or all keys that begin with it.
type spanBody struct {
	Key       string `json:"key"`
	KeyBase64 []byte `json:"key_base64"`
	RangeEnd  string `json:"range_end"`
	Prefix    bool   `json:"prefix"`
}

func (b *spanBody) span() (coord.Span, error) {
	key := b.Key
	if b.KeyBase64 != nil {
		if key != "" {
			return coord.Span{}, fault.Invalidf("key_base64", nil, "does not go with key")
		}
		key = string(b.KeyBase64)
	}
	switch {
	case b.Prefix && b.RangeEnd != "":
		return coord.Span{}, fault.Invalidf("range_end", nil, "does not go with prefix")
	case b.Prefix:
		return coord.Under(key), nil
	case b.RangeEnd != "":
		return coord.SpanOf([]byte(key), []byte(b.RangeEnd)), nil
	case key == "":
		return coord.Span{}, fault.Invalidf("key", nil, "is missing")
	}
	return coord.Exactly(key), nil
}

// bytesBody is a value as text or as bytes.
type bytesBody struct {
	Value       string `json:"value"`
	ValueBase64 []byte `json:"value_base64"`
}

func (b *bytesBody) bytes() ([]byte, error) {
	if b.ValueBase64 == nil {
		return []byte(b.Value), nil
	}
	if b.Value != "" {
		return nil, fault.Invalidf("value_base64", nil, "does not go with value")
	}
	return b.ValueBase64, nil
}

// compareBody is a comparison of keys, or of a lock with a fencing token.
type compareBody struct {
	spanBody
	bytesBody
	Target       string  `json:"target"`
	Operator     string  `json:"operator"`
	Number       int64   `json:"number"`
	Lease        leaseID `json:"lease_id"`
	Lock         string  `json:"lock"`
	FencingToken int64   `json:"fencing_token"`
}

func (b *compareBody) compare() (c coord.Compare, err error) {
	if c.Target, err = oneOf("target", b.Target, coord.ModRevision, coord.CreateRevision, coord.Version, coord.Value, coord.LeaseOf, coord.Holds); err != nil {
		return c, err
	}
	if c.Operator, err = oneOf("operator", b.Operator, coord.Equal, coord.NotEqual, coord.Less, coord.Greater); err != nil {
		return c, err
	}
	if c.Target == coord.Holds {
		c.Lock, c.Token = b.Lock, coord.Token(b.FencingToken)
		return c, nil
	}
	value, err := b.bytes()
	if err != nil {
		return c, err
	}
	if c.Number, c.Value = b.Number, string(value); c.Target == coord.LeaseOf {
		c.Number = int64(b.Lease)
	}
	c.Span, err = b.span()
	return c, err
}

// oneOf returns the value with a name; the first one is the default.
func oneOf[T fmt.Stringer](field, name string, values ...T) (T, error) {
	if name == "" {
		return values[0], nil
	}
	i := slices.IndexFunc(values, func(v T) bool { return v.String() == name })
	if i < 0 {
		return values[0], fault.Invalidf(field, input.Quote(name), "must be one of %v", values)
	}
	return values[i], nil
}

// stepBody is one step: exactly one field is set.
type stepBody struct {
	Put    *putBody    `json:"put"`
	Delete *deleteBody `json:"delete"`
	Range  *rangeBody  `json:"range"`
}

type putBody struct {
	Key       string `json:"key"`
	KeyBase64 []byte `json:"key_base64"`
	bytesBody
	Lease     leaseID `json:"lease_id"`
	Prev      bool    `json:"prev_kv"`
	KeepValue bool    `json:"keep_value"`
	KeepLease bool    `json:"keep_lease"`
}

type deleteBody struct {
	spanBody
	Prev bool `json:"prev_kv"`
}

type rangeBody struct {
	spanBody
	Revision   coord.Revision `json:"revision"`
	Limit      int            `json:"limit"`
	Order      string         `json:"order"`
	Descending bool           `json:"descending"`
	KeysOnly   bool           `json:"keys_only"`
	CountOnly  bool           `json:"count_only"`
	MinMod     coord.Revision `json:"min_mod_revision"`
	MaxMod     coord.Revision `json:"max_mod_revision"`
	MinCreate  coord.Revision `json:"min_create_revision"`
	MaxCreate  coord.Revision `json:"max_create_revision"`
}

func (b *stepBody) step() (coord.Step, error) {
	switch {
	case b.Put != nil && b.Delete == nil && b.Range == nil:
		return b.Put.step()
	case b.Delete != nil && b.Put == nil && b.Range == nil:
		span, err := b.Delete.span()
		return coord.Step{Delete: &span, Prev: b.Delete.Prev}, err
	case b.Range != nil && b.Put == nil && b.Delete == nil:
		read, err := b.Range.read()
		return coord.Step{Read: read}, err
	}
	return coord.Step{}, fault.Invalidf("", nil, "needs exactly one of put, delete and range")
}

func (b *putBody) step() (coord.Step, error) {
	span, err := (&spanBody{Key: b.Key, KeyBase64: b.KeyBase64}).span()
	if err != nil {
		return coord.Step{}, err
	}
	value, err := b.bytes()
	return coord.Step{Prev: b.Prev, Put: &coord.Put{
		Key: span.From, Value: value, Lease: coord.LeaseID(b.Lease), KeepValue: b.KeepValue, KeepLease: b.KeepLease,
	}}, err
}

func orderNamed(name string) (coord.Order, error) {
	return oneOf("order", name, coord.ByKey, coord.ByVersion, coord.ByCreateRevision, coord.ByModRevision, coord.ByValue)
}

func (b *rangeBody) read() (*coord.Read, error) {
	span, err := b.span()
	if err != nil {
		return nil, err
	}
	if b.Limit < 0 {
		return nil, fault.Invalidf("limit", b.Limit, "must be at least 0")
	}
	order, err := orderNamed(b.Order)
	return &coord.Read{
		Query: coord.Query{
			Span: span, At: b.Revision, Limit: b.Limit, Order: order, Descending: b.Descending, KeysOnly: b.KeysOnly, CountOnly: b.CountOnly,
		},
		MinMod: b.MinMod, MaxMod: b.MaxMod, MinCreate: b.MinCreate, MaxCreate: b.MaxCreate,
	}, err
}

// txnAnswer is the result of a transaction: its revision is the header's.
type txnAnswer struct {
	Header    coord.Header `json:"header"`
	Succeeded bool         `json:"succeeded"`        // then was executed
	Failed    int          `json:"failed,omitempty"` // position from 1 of the first comparison that does not hold
	Reason    string       `json:"reason,omitempty"` // of failed
	Changed   int          `json:"changed"`
	Results   []stepAnswer `json:"results"` // of each step of the branch
	Forgotten bool         `json:"forgotten,omitempty"`
}

type stepAnswer struct {
	Count int       `json:"count"`
	KVs   []keyBody `json:"kvs,omitempty"`
}

// transact compares keys, and then reads and changes keys.
func transact(p *coordinationAPI) callHandler {
	return func(ctx context.Context, c call) error {
		body, release, err := p.readLarge(c.w, c.r, maxTxnBody)
		if err != nil {
			return err
		}
		defer release()
		var b txnBody
		if err := input.Object(body, &b); err != nil {
			return err
		}
		op, err := b.txn()
		if err != nil {
			return err
		}
		result, header, err := p.do(ctx, c, op)
		if err != nil {
			return err
		}
		return writeJSON(c.w, http.StatusOK, fromTxn(result, header))
	}
}

func fromTxn(r coord.Result, header coord.Header) txnAnswer {
	answer := txnAnswer{
		Header: header, Succeeded: r.Txn.Succeeded, Failed: r.Txn.Failed, Reason: r.Txn.Reason,
		Changed: r.Changed, Results: make([]stepAnswer, len(r.Txn.Steps)), Forgotten: r.Txn.Forgotten,
	}
	for i, s := range r.Txn.Steps {
		answer.Results[i].Count = s.Count
		for _, kv := range s.Keys {
			answer.Results[i].KVs = append(answer.Results[i].KVs, fromKeyValue(kv))
		}
	}
	return answer
}

func (b *txnBody) txn() (*coord.Txn, error) {
	o := &coord.Txn{}
	for i := range b.Compare {
		c, err := b.Compare[i].compare()
		if err != nil {
			return nil, fault.In(fmt.Sprintf("compare[%d]", i), err)
		}
		o.If = append(o.If, c)
	}
	var err error
	if o.Then, err = stepsOf("then", b.Then); err != nil {
		return nil, err
	}
	o.Else, err = stepsOf("else", b.Else)
	return o, err
}

func stepsOf(branch string, list []stepBody) (steps []coord.Step, err error) {
	for i := range list {
		s, err := list[i].step()
		if err != nil {
			return nil, fault.In(fmt.Sprintf("%s[%d]", branch, i), err)
		}
		steps = append(steps, s)
	}
	return steps, nil
}
