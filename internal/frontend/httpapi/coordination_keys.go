package httpapi

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// putKey stores the body of the request as the value of a key.
func (p *coordinationAPI) putKey(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	values, err := input.Known(r.URL, "lease_id", "if_revision")
	if err != nil {
		return err
	}
	put := &api.TxnPut{Key: []byte(r.PathValue("key"))}
	if given := values.Get("lease_id"); values.Has("lease_id") {
		if put.Lease, err = strconv.ParseInt(given, 10, 64); err != nil || put.Lease <= 0 {
			return fault.Invalidf("lease_id", input.Quote(given), "must be a number above 0")
		}
	}
	value, release, err := p.readLarge(w, r, coord.MaxValue)
	if err != nil {
		return err
	}
	defer release()
	put.Value = value
	return p.change(ctx, w, put.Key, values, &api.TxnStep{Step: &api.TxnStep_Put{Put: put}})
}

// deleteKey deletes a key, or with prefix=true all keys that begin with it.
func (p *coordinationAPI) deleteKey(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	values, err := input.Known(r.URL, "prefix", "if_revision")
	if err != nil {
		return err
	}
	all, err := input.ParseBool(values, "prefix")
	if err != nil {
		return err
	}
	key := r.PathValue("key")
	del := &api.TxnDelete{Key: []byte(key)}
	if all {
		del.Key, del.RangeEnd = coord.Under(key).Bounds()
	}
	if all && values.Has("if_revision") {
		return fault.Invalidf("if_revision", nil, "conflicts with prefix: it compares one key")
	}
	return p.change(ctx, w, []byte(key), values, &api.TxnStep{Step: &api.TxnStep_Delete{Delete: del}})
}

// change makes one change, guarded by the parameter if_revision: 0 demands that the key is absent.
func (p *coordinationAPI) change(ctx context.Context, w http.ResponseWriter, key []byte, values url.Values, step *api.TxnStep) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	req := &api.TxnRequest{Then: []*api.TxnStep{step}}
	if given := values.Get("if_revision"); values.Has("if_revision") {
		mod, err := strconv.ParseInt(given, 10, 64)
		if err != nil || mod < 0 {
			return fault.Invalidf("if_revision", input.Quote(given), "must be the mod_revision of the key, or 0 for an absent key")
		}
		req.Compare = []*api.Compare{{Target: api.Compare_MOD_REVISION, Operator: api.Compare_EQUAL, Key: key, Number: mod}}
	}
	resp, err := p.Calls.Txn(ctx, req)
	switch {
	case err != nil:
		return ofParameter(err)
	case resp.GetFailed() > 0:
		return fault.Refused(fault.Conflict, "if_revision", "%s", resp.GetReason())
	}
	return writeMessage(w, http.StatusOK, resp)
}

// ofParameter names the part of the request in place of the field of a transaction.
func ofParameter(err error) error {
	field, ok := map[string]string{
		"compare[0].key": "key", "then[0].key": "key", "then[0].value": "body", "then[0].lease": "lease_id",
	}[fault.FieldOf(err)]
	if !ok {
		return err
	}
	return &fault.Error{Op: "httpapi.change", Kind: fault.KindOf(err), Field: field, Value: fault.ValueOf(err), Err: errors.New(fault.Message(err))}
}
