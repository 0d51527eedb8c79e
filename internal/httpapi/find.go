package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

func (s *Server) query(w http.ResponseWriter, r *http.Request) error {
	body, err := readBody(w, r, maxBody)
	if err != nil {
		return err
	}
	q, err := query.ParseJSON(body)
	if err != nil {
		return err
	}
	return s.answer(w, r, q)
}

func (s *Server) queryByParameters(w http.ResponseWriter, r *http.Request) error {
	q, err := query.ParseValues(r.URL.Query())
	if err != nil {
		return err
	}
	return s.answer(w, r, q)
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, q query.Query) error {
	a, err := s.Finder.Query(r.Context(), q)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, a.View())
	return nil
}

// watch streams server-sent events (WHATWG HTML, section 9.2). A client resumes with the
// id of the last event, in the Last-Event-ID header or the parameter after.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) error {
	values := r.URL.Query()
	after := values.Get("after")
	values.Del("after")
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		after = id
	}
	q, err := query.ParseValues(values)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)()
	watcher, err := s.Finder.Watch(ctx, q, after)
	if err != nil {
		return err
	}
	defer watcher.Close()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	s.stream(ctx, w, watcher)
	return nil
}

// stream writes events until the client or the server goes; a client that does not read
// is gone after writeAnswer.
func (s *Server) stream(ctx context.Context, w http.ResponseWriter, watcher *discovery.Watcher) {
	control := http.NewResponseController(w)
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

// eventData is the data of an event.
type eventData struct {
	Record *records.View `json:"record,omitempty"`
}

func writeEvent(w http.ResponseWriter, ev discovery.Event) error {
	var data eventData
	if ev.Record != nil {
		v := records.ViewOf(ev.Record)
		data.Record = &v
	}
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "event: %s\nid: %s\ndata: %s\n\n", ev.Kind, ev.Cursor, text)
	return err
}
