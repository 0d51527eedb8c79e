package httpapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
)

func (s *Server) query(w http.ResponseWriter, r *http.Request) error {
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	q, err := query.ParseJSON(body)
	if err != nil {
		return within("body", err)
	}
	return s.answer(w, r, q)
}

func (s *Server) queryByParameters(w http.ResponseWriter, r *http.Request) error {
	values, err := input.Query(r.URL)
	if err != nil {
		return err
	}
	q, err := query.ParseValues(values)
	if err != nil {
		return within("url", err)
	}
	return s.answer(w, r, q)
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, q query.Query) error {
	a, err := s.Finder.Query(r.Context(), q)
	if err != nil {
		return err
	}
	s.writeAppended(w, a.AppendJSON)
	return nil
}

// watch streams server-sent events (WHATWG HTML, section 9.2). A client resumes with the
// id of the last event, in the Last-Event-ID header or the parameter after.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) error {
	q, after, err := readWatch(r)
	if err != nil {
		return err
	}
	release, err := s.watches.take("watches")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)()
	watcher, err := s.Finder.Watch(ctx, q, after)
	if err != nil {
		if s.closing.Err() != nil {
			return fault.New("httpapi.watch", fault.Unavailable, "the peer is shutting down")
		}
		return err
	}
	defer watcher.Close()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		stream(ctx, w, watcher)
	}
	return nil
}

// readWatch gives the query and the event to resume after.
func readWatch(r *http.Request) (q query.Query, after string, err error) {
	values, err := input.Query(r.URL)
	if err != nil {
		return q, "", err
	}
	if after, err = input.Single(values, "after"); err != nil {
		return q, "", err
	}
	values.Del("after")
	if id := r.Header.Get("Last-Event-ID"); id != "" { // of a browser that reconnects to the URL it began with
		after = id
	}
	q, err = query.ParseValues(values)
	return q, after, within("url", err)
}

// stream writes events until the client or the server goes; a client that does not read
// is gone after writeAnswer. The header goes out before there is an event.
func stream(ctx context.Context, w http.ResponseWriter, watcher discovery.Watcher) {
	control := http.NewResponseController(w)
	if err := control.Flush(); err != nil {
		return
	}
	for {
		ev, err := watcher.Next(ctx)
		if err != nil {
			return
		}
		if err := control.SetWriteDeadline(time.Now().Add(writeAnswer)); err != nil {
			return
		}
		if err := writeEvent(w, ev); err != nil {
			return
		}
		if err := control.Flush(); err != nil {
			return
		}
	}
}

// writeEvent leaves the id out where there is none: an empty one would make a browser
// forget the last.
func writeEvent(w io.Writer, ev discovery.Event) error {
	data := []byte("{}")
	if ev.Record != nil { // in one line, as the framing wants it
		data = append(ev.Record.AppendJSON([]byte(`{"record":`)), '}')
	}
	id := ""
	if ev.Cursor != "" {
		id = "id: " + ev.Cursor + "\n"
	}
	_, err := fmt.Fprintf(w, "event: %s\n%sdata: %s\n\n", ev.Kind, id, data)
	return err
}
