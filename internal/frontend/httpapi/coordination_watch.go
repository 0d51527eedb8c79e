package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/transcode"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

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
		text, err := transcode.JSON(b)
		if err != nil {
			return err
		}
		id := fmt.Sprintf("id: %d\n", at)
		if b.GetFragment() { // the rest of the revision follows
			id = ""
		}
		return out.write(fmt.Appendf(nil, "event: %s\n%sdata: %s\n\n", kind, id, text))
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
