package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Bounds of the time that a watch waits for a change.
const (
	defaultWatch = 5 * time.Minute
	maxWatch     = 10 * time.Minute
)

// watchInstances waits until a result is another than that of an index, and gives it; or, for who
// accepts server-sent events, streams its changes.
func (s *Server) watchInstances(w http.ResponseWriter, r *http.Request) error {
	q, values, err := readQuery(r, "index", "wait")
	if err != nil {
		return err
	}
	after, wait, err := readPatience(values)
	if err != nil {
		return parameterError{err}
	}
	release, err := s.watches.take("watches")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)()
	// The request has arrived: the time to read it does not bound the wait.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		return s.orClosing(ofParameters(s.streamInstances(ctx, w, r, question{q, after})))
	}
	result, err := s.await(ctx, question{q, after}, wait, r.Method)
	if err != nil {
		return s.orClosing(ofParameters(err))
	}
	writeInstances(w, q.Service, result)
	return nil
}

// question is what is watched, and up to where it is known.
type question struct {
	instance.Query
	after uint64
}

// await gives a result at once to who knows none, and to who wants the header only.
func (s *Server) await(ctx context.Context, q question, wait time.Duration, method string) (instance.Result, error) {
	if q.after == 0 || method == http.MethodHead {
		return s.Agent.Catalog.Discover(ctx, q.Query)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return s.Agent.Catalog.Await(ctx, q.Query, q.after)
}

// readPatience reads what a client knows already, and how long it waits to know more.
func readPatience(values url.Values) (after uint64, wait time.Duration, err error) {
	if text := values.Get("index"); text != "" {
		if after, err = strconv.ParseUint(text, 10, 64); err != nil {
			return 0, 0, fault.Invalidf("index", input.Shown(text), "is no index of an answer")
		}
	}
	text := values.Get("wait")
	if text == "" {
		return after, defaultWatch, nil
	}
	wait, err = time.ParseDuration(text)
	if n, plain := strconv.ParseUint(text, 10, 32); plain == nil {
		wait, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || wait < 0 || wait > maxWatch {
		return 0, 0, fault.Invalidf("wait", input.Shown(text), "must be a time such as 30s, at most %s", maxWatch)
	}
	return after, wait, nil
}

// streamInstances sends reset, with all that there is, and then change for each change; contact
// when it is lost or found again; and comments, that the client knows of a connection that lives.
// Ids are indexes; a client resumes with the last in Last-Event-ID.
func (s *Server) streamInstances(ctx context.Context, w http.ResponseWriter, r *http.Request, q question) error {
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		last, err := strconv.ParseUint(id, 10, 64)
		if err != nil {
			return fault.Invalidf("Last-Event-ID", input.Shown(id), "is no id of this watch")
		}
		q.after = last
	}
	out := &instanceStream{w: w, control: http.NewResponseController(w), service: q.Service, head: r.Method == http.MethodHead}
	err := s.Agent.Catalog.Watch(ctx, q.Query, q.after, out.send)
	if out.begun {
		return nil // the stream is all there is to say it in: the client comes back
	}
	return err
}

// instanceStream is the answer to a watch.
type instanceStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	service string
	head    bool // only the header is wanted
	begun   bool
	stale   bool // as the client was told last
	buf     []byte
}

// send writes one batch; a client that does not read it in time is gone.
func (o *instanceStream) send(b instance.Batch) error {
	if !o.begun {
		o.begun = true
		h := o.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		tell(h, b.Index, b.Contact)
		o.w.WriteHeader(http.StatusOK)
	}
	if o.head {
		return fault.New("httpapi.watchInstances", fault.Canceled, "only the header is wanted")
	}
	if err := o.control.SetWriteDeadline(time.Now().Add(writeAnswer)); err != nil {
		return err
	}
	o.buf = o.append(o.buf[:0], b)
	if _, err := o.w.Write(o.buf); err != nil {
		return err
	}
	return o.control.Flush()
}

// append appends what a batch has to say. That of a mark of progress is a comment with an id, of
// which clients take note (WHATWG HTML, section 9.2.6).
func (o *instanceStream) append(dst []byte, b instance.Batch) []byte {
	told := len(dst)
	if b.Stale != o.stale {
		o.stale = b.Stale
		dst = appendContact(dst, b.Contact)
	}
	switch {
	case b.Reset:
		list := make([]*instance.Instance, len(b.Events))
		for n, e := range b.Events {
			list[n] = e.Instance
		}
		dst = appendID(append(dst, "event: reset\n"...), b.Index)
		dst = dialect.AppendList(append(dst, "data: "...), o.service, instance.NewView(b.Index, list))
	case len(b.Events) > 0:
		dst = appendID(append(dst, "event: change\n"...), b.Index)
		dst = dialect.AppendChanges(append(dst, "data: "...), b)
	case len(dst) > told:
		return dst
	default:
		dst = appendID(append(dst, ": progress\n"...), b.Index)
		return append(dst, '\n')
	}
	return append(dst, "\n\n"...)
}

func appendID(dst []byte, index uint64) []byte {
	dst = strconv.AppendUint(append(dst, "id: "...), index, 10)
	return append(dst, '\n')
}

// contactBody is the data of the event contact.
type contactBody struct {
	Stale  bool    `json:"stale"`
	Reason string  `json:"reason,omitempty"`
	Age    float64 `json:"age_seconds,omitempty"`
}

func appendContact(dst []byte, c instance.Contact) []byte {
	text, err := json.Marshal(contactBody{c.Stale, c.Reason, c.Age.Seconds()})
	if err != nil {
		return dst // impossible: the fields have a JSON form
	}
	dst = append(dst, "event: contact\ndata: "...)
	return append(append(dst, text...), "\n\n"...)
}
