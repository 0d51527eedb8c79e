package httpapi

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// keyAnswer is one key.
type keyAnswer struct {
	Header coord.Header `json:"header"`
	KV     keyBody      `json:"kv"`
}

// keysAnswer is a page of keys, all at one revision.
type keysAnswer struct {
	Header     coord.Header   `json:"header"`
	Revision   coord.Revision `json:"revision"` // that was read
	Keys       []keyBody      `json:"keys"`
	Next       string         `json:"next,omitempty"`        // the first key of the rest; absent at the end
	NextBase64 []byte         `json:"next_base64,omitempty"` // instead of next for bytes that are not text
	Count      *int           `json:"count,omitempty"`       // of all keys with the prefix, with count_only
}

// keyWritten is the result of a write: its revision is the header's.
type keyWritten struct {
	Header  coord.Header `json:"header"`
	Changed int          `json:"changed"` // keys put or deleted
}

// getKey reads a key, by default at the present revision.
func (p *coordinationAPI) getKey(ctx context.Context, c call) error {
	values, err := input.Known(c.r.URL, "revision")
	if err != nil {
		return err
	}
	at, err := input.Number(values, "revision")
	if err != nil {
		return err
	}
	key := c.r.PathValue("key")
	page, header, err := p.Reader.Range(ctx, coord.Query{Span: coord.Exactly(key), At: coord.Revision(at), Limit: 1}, coord.Linearizable)
	if err != nil {
		return ofParameter(err)
	}
	if len(page.Keys) == 0 {
		return fault.Refused(fault.NotFound, "key", "does not exist at revision %d", page.Revision)
	}
	return writeJSON(c.w, http.StatusOK, keyAnswer{header, fromKeyValue(page.Keys[0])})
}

// maxPageBytes ends a page of keys: the rest follows from next.
const maxPageBytes = 8 << 20

// listKeys reads a page of the keys under a prefix. The next page begins at from, at the same revision.
func (p *coordinationAPI) listKeys(ctx context.Context, c call) error {
	q, err := parseKeyQuery(c.r.URL)
	if err != nil {
		return err
	}
	page, header, err := p.Reader.Range(ctx, q, coord.Linearizable)
	if err != nil {
		return ofParameter(err)
	}
	answer := keysAnswer{Header: header, Revision: page.Revision, Keys: make([]keyBody, len(page.Keys))}
	answer.Next, answer.NextBase64 = readable([]byte(page.Next))
	for i, kv := range page.Keys {
		answer.Keys[i] = fromKeyValue(kv)
	}
	if q.CountOnly {
		answer.Count = &page.Count
	}
	return writeJSON(c.w, http.StatusOK, answer)
}

func parseKeyQuery(u *url.URL) (q coord.Query, err error) {
	values, err := input.Known(u, "prefix", "from", "limit", "revision", "order", "descending", "keys_only", "count_only")
	if err != nil {
		return q, err
	}
	at, err := input.Number(values, "revision")
	if err != nil {
		return q, err
	}
	q = coord.Query{Span: coord.Under(values.Get("prefix")), At: coord.Revision(at), Bytes: maxPageBytes, From: values.Get("from")}
	if values.Has("from") && !strings.HasPrefix(q.From, values.Get("prefix")) {
		return q, fault.Invalidf("from", input.Quote(q.From), "must begin with the prefix")
	}
	if q.Order, err = orderNamed(values.Get("order")); err != nil {
		return q, err
	}
	for name, flag := range map[string]*bool{"descending": &q.Descending, "keys_only": &q.KeysOnly, "count_only": &q.CountOnly} {
		if *flag, err = input.ParseBool(values, name); err != nil {
			return q, err
		}
	}
	if q.Limit, err = readPage(values); q.Limit == 0 {
		q.Limit = maxListed
	}
	return q, err
}

// putKey stores the body of the request as the value of a key.
func (p *coordinationAPI) putKey(ctx context.Context, c call) error {
	values, err := input.Known(c.r.URL, "lease_id", "if_revision")
	if err != nil {
		return err
	}
	put := coord.Put{Key: c.r.PathValue("key")}
	if values.Has("lease_id") {
		id, err := parseLeaseID(values.Get("lease_id"))
		if err != nil {
			return err
		}
		put.Lease = coord.LeaseID(id)
	}
	value, release, err := p.readLarge(c.w, c.r, coord.MaxValue)
	if err != nil {
		return err
	}
	defer release()
	put.Value = value
	return p.write(ctx, c, put.Key, values, coord.Step{Put: &put})
}

// deleteKey deletes a key, or with prefix=true all keys that begin with it.
func (p *coordinationAPI) deleteKey(ctx context.Context, c call) error {
	values, err := input.Known(c.r.URL, "prefix", "if_revision")
	if err != nil {
		return err
	}
	all, err := input.ParseBool(values, "prefix")
	if err != nil {
		return err
	}
	key := c.r.PathValue("key")
	span := coord.Exactly(key)
	if all {
		span = coord.Under(key)
	}
	if all && values.Has("if_revision") {
		return fault.Invalidf("if_revision", nil, "conflicts with prefix: it compares one key")
	}
	return p.write(ctx, c, key, values, coord.Step{Delete: &span})
}

// write makes one change, guarded by the parameter if_revision: 0 demands that the key is absent.
func (p *coordinationAPI) write(ctx context.Context, c call, key string, values url.Values, change coord.Step) error {
	op := &coord.Txn{Then: []coord.Step{change}}
	if given := values.Get("if_revision"); values.Has("if_revision") {
		mod, err := strconv.ParseInt(given, 10, 64)
		if err != nil || mod < 0 {
			return fault.Invalidf("if_revision", input.Quote(given), "must be the mod_revision of the key, or 0 for an absent key")
		}
		op.If = []coord.Compare{coord.IfRevision(key, coord.Revision(mod))}
	}
	result, header, err := p.do(ctx, c, op)
	if err == nil {
		err = result.Txn.Unmet()
	}
	if err != nil {
		return ofParameter(err)
	}
	return writeJSON(c.w, http.StatusOK, keyWritten{header, result.Changed})
}

// ofParameter names the part of the request in place of the field of a coord.Txn or a coord.Query.
func ofParameter(err error) error {
	field, ok := map[string]string{
		"compare[0]": "if_revision", "compare[0].key": "key", "then[0].key": "key",
		"then[0].value": "body", "then[0].lease": "lease_id", "at": "revision",
	}[fault.FieldOf(err)]
	if !ok {
		return err
	}
	return &fault.Error{Op: "httpapi.write", Kind: fault.KindOf(err), Field: field, Value: fault.ValueOf(err), Err: errors.New(fault.Message(err))}
}
