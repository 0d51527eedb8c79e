package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/transcode"
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
	if put.Value, err = readUpTo(w, r, coord.MaxValue); err != nil {
		return err
	}
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
	result, err := p.Calls.Execute(ctx, coord.CommandOf("", req))
	resp := result.GetTxn()
	switch {
	case err != nil:
		return ofParameter(err)
	case resp.GetFailed() > 0:
		return fault.Refused(fault.Conflict, "if_revision", "%s", resp.GetReason())
	}
	return writeMessage(w, http.StatusOK, resp, 0)
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

// watchKeys streams the events created, events and progress. The event compacted ends a watch whose start is no longer
// stored: its id is the current revision, at which a client lists the keys, and from which a client that reconnects
// continues. A client resumes with the id of the last event, the last revision that it has received completely.
func (p *coordinationAPI) watchKeys(ctx context.Context, c calling) error {
	if id := c.r.Header.Get("Last-Event-ID"); id != "" {
		last, err := strconv.ParseInt(id, 10, 64)
		if err != nil || last < 0 {
			return fault.Invalidf("Last-Event-ID", input.Quote(id), "is malformed: send the id of the last event")
		}
		c.req.(*api.WatchKeysRequest).StartRevision = last + 1
	}
	out := newEventStream(c.w, c.r)
	var failed error // why the group ended the watch
	err := c.Run(ctx, c.req, func(m proto.Message) error {
		b := m.(*api.WatchKeysResponse)
		kind, at := "events", b.GetNextRevision()-1
		switch {
		case b.GetCompactRevision() > 0:
			kind, at = "compacted", b.GetHeader().GetRevision()
		case b.GetCanceled():
			e, field := b.GetError(), b.GetError().GetField()
			if field == "from" {
				field = "start_revision"
			}
			failed = &fault.Error{Op: e.GetOp(), Kind: fault.Kind(e.GetKind()), Field: field, Err: errors.New(e.GetMessage())}
			return nil
		case b.GetCreated():
			kind = "created"
		case len(b.GetEvents()) == 0:
			kind = "progress"
		}
		id := fmt.Sprintf("id: %d\n", at)
		if b.GetFragment() { // the rest of the revision follows
			id = ""
		}
		return out.writeLarge(3*proto.Size(b), func() ([]byte, error) { // the batch, its text, and what makes it
			text := fmt.Appendf(make([]byte, 0, 2*proto.Size(b)+512), "event: %s\n%sdata: ", kind, id)
			text, err := transcode.AppendJSON(text, b)
			return append(text, "\n\n"...), err
		})
	})
	if failed != nil {
		err = failed
	}
	return out.end(err)
}

// backUp streams a backup of the group. A backup that breaks off has no proper end in HTTP either, and its checksums tell.
func (p *coordinationAPI) backUp(ctx context.Context, c calling) error {
	release, err := p.backups.Take(ctx, "httpapi.backup")
	if err != nil {
		return err
	}
	defer release()
	out := &download{w: c.w, control: http.NewResponseController(c.w)}
	if c.r.Method == http.MethodHead {
		out.begin()
		return nil
	}
	err = c.Run(ctx, c.req, func(m proto.Message) error { return out.write(m.(*api.BackupResponse).GetData()) })
	if err != nil && out.begun {
		panic(http.ErrAbortHandler) // net/http breaks the connection; the plane behind has logged the reason
	}
	return err
}

// download is an answer of unknown size. Each part has its own bound on time.
type download struct {
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool
}

func (d *download) begin() {
	d.begun = true
	h := d.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", `attachment; filename="blackholed-group.backup"`)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	d.w.WriteHeader(http.StatusOK)
}

func (d *download) write(b []byte) error {
	if !d.begun {
		d.begin()
	}
	_ = d.control.SetWriteDeadline(time.Now().Add(writeAnswer)) // an error shows in the write
	_, err := d.w.Write(b)
	return fault.As("httpapi.backup", fault.Canceled, err)
}
