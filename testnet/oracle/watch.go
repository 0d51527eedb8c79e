package oracle

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/blackhole/blackhole/testnet/network"
)

// view is what one watch shows. It is safe for concurrent use.
type view struct {
	question Question
	peer     *network.Peer

	mu      sync.Mutex // guards the rest
	records map[string]Record
	events  int    // since they were counted
	doubt   string // why the last mark said that matches may be missing
	marked  bool   // a mark has come
	err     error  // that ended the stream
}

// follow reads events until ctx ends.
func (v *view) follow(ctx context.Context) {
	err := v.stream(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.err = err
}

func (v *view) stream(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+v.peer.HTTP+"/v1/discovery/watch?"+v.question.parameters().Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, err := io.ReadAll(resp.Body)
		return errors.Join(fmt.Errorf("status %d: %s", resp.StatusCode, b), err)
	}
	lines, kind := bufio.NewReader(resp.Body), ""
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			kind = name
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if err := v.apply(kind, []byte(data)); err != nil {
				return err
			}
		}
	}
}

// apply takes one event.
func (v *view) apply(kind string, data []byte) error {
	var e struct {
		Record   Record
		Complete bool
		Reason   string
	}
	if err := read(data, &e); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.events++
	switch kind {
	case "reset":
		v.records = nil
	case "progress":
		v.marked, v.doubt = true, e.Reason
	case "added", "updated":
		if v.records == nil {
			v.records = make(map[string]Record)
		}
		v.records[e.Record.name()] = e.Record
	case "withdrawn", "expired", "removed":
		delete(v.records, e.Record.name())
	default:
		return fmt.Errorf("an event %q", kind)
	}
	return nil
}

// compare compares the view with all matches: their names and versions.
func (v *view) compare(want map[string]Record) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.err != nil {
		return v.err
	}
	for name, r := range want {
		switch got, ok := v.records[name]; {
		case !ok:
			return fmt.Errorf("%s is missing", name)
		case got["sequence"] != r["sequence"]:
			return fmt.Errorf("%s is of another version", name)
		}
	}
	for name := range v.records {
		if want[name] == nil {
			return fmt.Errorf("%s is no match", name)
		}
	}
	if !v.marked {
		return errors.New("no progress has come")
	}
	return nil
}

// counted returns the events since the last call.
func (v *view) counted() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := v.events
	v.events = 0
	return n
}

// said returns why the watch says that it is not complete; empty if it is.
func (v *view) said() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.doubt
}
